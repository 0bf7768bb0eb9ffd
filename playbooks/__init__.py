"""Judge: playbooks for people (YAML), the loader and the gates. Nothing here measures."""
