"""What the paper's figures hide: experiments that it did not make, on the same engine
(``minipaged paper beyond``).

=================== =============================================================================
``experiment``      what an experiment is, and where it is made
``bursts``          gamma arrivals and real timestamps
``tails``           percentiles, and first tokens
``prefill``         prompts between decodes: three ways to schedule them
``transfer``        swap or recompute, by link, block size, KV heads and card
``blocks``          block size 1 to 256
``long_context``    longer prompts
``prefix_chat``     chat with and without prefix sharing
``victims``         whom to preempt
``baseline``        what one assumes of Orca
``first_fit``       an allocator for it
``drawing``         what their figures share
``experiments``     all of them, by name
=================== =============================================================================
"""
