class HFValidationError(Exception):
    pass
