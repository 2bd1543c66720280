"""Pictures of the block pool: one state, one notation, several renderers.

``state`` holds the state as plain data and its notation as text; ``terminal``, ``svg`` and
``plot`` draw it. Nothing here knows the engine.
"""
