"""`dfmp2 report`: results as one self-contained HTML page."""
