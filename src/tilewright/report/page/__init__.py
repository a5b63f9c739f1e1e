"""The page of a network or of layers, one HTML file that opens offline: `tilewright report`.

data     what is shown, as values and as JSON
gather   plans -> data
what_if  the times on machines that differ, by the model
charts   the pictures, by matplotlib, as SVG whose colours follow the page
compose  data -> HTML; page.css and page.js are put into it
"""
