"""The course on top of the engine: skeletons, a student's parts, the judge and the score card."""
