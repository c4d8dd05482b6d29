"""What infhess is measured with: problems, training runs, comparisons with other tools, and the paper's experiments."""
