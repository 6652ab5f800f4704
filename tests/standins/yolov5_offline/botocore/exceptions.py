class NoCredentialsError(Exception):
    pass
