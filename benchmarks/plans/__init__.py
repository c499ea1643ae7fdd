"""Plans and predictions: real graphs, public instances, growth."""
