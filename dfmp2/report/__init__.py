"""Reports to read and to keep: results as one self-contained HTML page or as Markdown."""
