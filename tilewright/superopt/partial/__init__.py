"""Programs that compute some positions of a tensor as another one does, corrected at the others."""
