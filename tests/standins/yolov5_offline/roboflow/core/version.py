class Version:
    pass
