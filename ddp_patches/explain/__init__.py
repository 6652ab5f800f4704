"""What happened in a job, from what it left in its logs. Needs neither torch nor a framework.

The way of a line: ``reading`` (files, folders, standard input; bounded) -> ``prefixes`` (who wrote it) ->
``messages`` and ``tracebacks`` (what it says) -> ``events`` (bounded collection) -> ``findings`` (what
follows from it) -> ``text`` (how it is said). Nothing that is read is executed, and nothing is printed with
its control characters.
"""
