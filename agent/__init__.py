"""Walk a playbook over a run: graph, incident folders, memo, command line."""
