"""Selection: the windows of each batch, as a pure function of (seed, step).

`samplers` holds one module for each sampler. The modules beside it are the parts that samplers are built from: which
steps are anchors (`anchors`, `step_mask`), tables of integer weights (`integer_weights`, `prefix_table`, `weight_tree`,
`weight_history`), and drawing (`window_sampler`). `turns` deals the turns of a mixture's datasets.
"""
