"""The web page's files, served as they are: no build step."""
