"""Training recipes: a whole run from one call.

Example::

    from nodus.recipes import rl

    run = rl.train(tasks, reward, max_cost=2)
"""
