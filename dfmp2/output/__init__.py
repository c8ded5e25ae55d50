"""Results for people and for other programs: text, JSON, CSV, HTML pages."""
