"""Chromium for the tests of reports: installing it, driving it, and the screenshot of the documentation."""
