"""The memo that a person reads: Markdown, and one self-contained HTML page."""
