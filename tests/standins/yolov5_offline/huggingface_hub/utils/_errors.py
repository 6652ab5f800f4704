class RepositoryNotFoundError(Exception):
    pass
