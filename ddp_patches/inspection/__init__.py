"""A look at what is installed, from files alone: nothing of a framework is imported or executed."""
