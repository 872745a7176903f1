"""The demo of `gear-data demo`, and the trainer that scripts share."""
