"""The first-order model of the Roofline methodology: closed forms, no tiles, no replay."""
