"""``memplan.torch_solver`` against the knapsack solvers of PyTorch's own memory budget."""
