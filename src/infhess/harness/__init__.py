"""The harness: training runs, budgets, counting and tuning; problems × methods × budgets → rows."""
