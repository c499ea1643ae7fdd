"""What tests share: graphs, problems, models, ways to run them. Nothing here is a test."""
