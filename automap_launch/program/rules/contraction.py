"""Rules of operations that sum over dims or over windows of dims: dot, convolution, reduce, windows."""

from __future__ import annotations

from automap_launch.program.rules.relations import Relations, rule


@rule("dot_general")
def dot_general(r: Relations) -> None:
    numbers = r.node.attributes["dot_dimension_numbers"]
    left, right = r.node.operands
    result = r.node.results[0]
    target = 0
    for a, b in zip(numbers["lhs_batch"], numbers["rhs_batch"], strict=True):
        r.link((left, a), (right, b))
        r.link((left, a), (result, target))
        target += 1
    for value, batch, contract in (
        (left, numbers["lhs_batch"], numbers["lhs_contract"]),
        (right, numbers["rhs_batch"], numbers["rhs_contract"]),
    ):
        for dim in range(len(r.shape(value))):
            if dim not in batch and dim not in contract:
                r.link((value, dim), (result, target))
                target += 1
    for a, b in zip(numbers["lhs_contract"], numbers["rhs_contract"], strict=True):
        r.link((left, a), (right, b))
        if r.shape(left)[a] > 1:
            r.contracted.extend([(0, a), (1, b)])


@rule("convolution")
def convolution(r: Relations) -> None:
    """Batch and features; spatial dims are never sharded. Grouped convolutions link features only when depthwise."""
    numbers = r.node.attributes["dimension_numbers"]
    image, kernel = r.node.operands
    result = r.node.results[0]
    feature_groups = r.node.attributes.get("feature_group_count", 1)
    batch_groups = r.node.attributes.get("batch_group_count", 1)
    batch, features = (image, numbers["input_batch"]), (image, numbers["input_feature"])
    kernel_in, kernel_out = (kernel, numbers["kernel_input"]), (kernel, numbers["kernel_output"])
    result_batch, result_features = (result, numbers["output_batch"]), (result, numbers["output_feature"])
    if feature_groups == 1 and batch_groups == 1:
        r.link(batch, result_batch)
        r.link(kernel_out, result_features)
        r.link(features, kernel_in)
        if r.shape(image)[features[1]] > 1:
            r.contracted.extend([(0, features[1]), (1, kernel_in[1])])
    elif batch_groups == 1:
        r.link(batch, result_batch)
        r.link(kernel_out, result_features)
        if feature_groups == r.shape(image)[features[1]] == r.shape(result)[result_features[1]]:
            r.link(features, result_features)
        else:
            r.keep_whole(features, kernel_out, result_features)
        r.keep_whole(kernel_in)
    else:
        # The weight gradient of a grouped convolution: the batch dim of its image holds the groups.
        r.link(features, kernel_in)
        r.contracted.extend([(0, features[1]), (1, kernel_in[1])])
        r.link(kernel_out, result_features)
        if batch_groups == r.shape(image)[batch[1]] == r.shape(result)[result_features[1]]:
            r.link(batch, result_features)
        else:
            r.keep_whole(batch, kernel_out, result_features)
    for value, which in ((image, "input_spatial"), (kernel, "kernel_spatial"), (result, "output_spatial")):
        r.fixed.extend((value, dim) for dim in numbers[which])


@rule("reduce")
def reduce(r: Relations) -> None:
    """A reduction of several operands (argmax) has no partial result that one collective completes, so the compiler
    gathers them. Of one operand it makes partial results whatever the reduction is, and fails where no collective
    completes them."""
    dims = r.node.attributes["dimensions"]
    several = len(r.node.results) > 1
    for position, result in enumerate(r.node.results):
        operand = r.node.operands[position]
        if position:
            r.link_all(r.node.operands[0], operand)
        kept = [d for d in range(len(r.shape(operand))) if d not in dims]
        for target, dim in enumerate(kept):
            r.link((operand, dim), (result, target))
        for dim in dims:
            if several:
                r.keep_whole((operand, dim))
            elif not _has_collective(r):
                r.fixed.append((operand, dim))
            elif r.shape(operand)[dim] > 1:
                r.contracted.append((position, dim))


def _has_collective(r: Relations) -> bool:
    """XLA's collectives add, multiply, and take extrema; of booleans these are `and` and `or`."""
    of_booleans = r.graph.values[r.node.results[0]].dtype == "bool" and r.node.reducer in ("and", "or")
    return of_booleans or r.node.reducer in ("add", "multiply", "maximum", "minimum")


@rule("reduce_window")
def reduce_window(r: Relations) -> None:
    """Pooling, and a cumulative sum where the backend has no better way: dims under the window stay whole."""
    window = r.node.attributes["window_dimensions"]
    for position, result in enumerate(r.node.results):
        operand = r.node.operands[position]
        for dim, width in enumerate(window):
            if width == 1 and r.shape(operand)[dim] == r.shape(result)[dim]:
                r.link((operand, dim), (result, dim))
            else:
                r.keep_whole((operand, dim), (result, dim))
                r.cut.extend([(operand, dim), (result, dim)])
        if position:
            r.link_all(r.node.operands[0], operand)


@rule("select_and_scatter")
def select_and_scatter(r: Relations) -> None:
    """The gradient of pooling: operand and result alike, the source under the window whole."""
    operand, source = r.node.operands[:2]
    result = r.node.results[0]
    r.link_all(operand, result)
    window = r.node.attributes.get("window_dimensions", (1,) * len(r.shape(operand)))
    for dim, width in enumerate(window):
        if width == 1 and r.shape(operand)[dim] == r.shape(source)[dim]:
            r.link((operand, dim), (source, dim))
        else:
            r.keep_whole((operand, dim), (source, dim), (result, dim))


@rule("cholesky", "triangular_solve", "fft")
def matrix(r: Relations) -> None:
    """Batched linear algebra: the leading dims go through, the dims that the algorithm walks stay whole. XLA's
    partitioner knows no batched Fourier transform: it gives it whole operands.
    """
    walked = len(r.node.attributes["fft_length"]) if r.node.name == "fft" else 2
    result = r.node.results[0]
    leading = len(r.shape(result)) - walked
    for value in r.node.operands:
        for dim in range(leading):
            r.link((value, dim), (result, dim))
        whole = 0 if r.node.name == "fft" else leading
        r.keep_whole(*((value, dim) for dim in range(whole, len(r.shape(value)))))
    r.keep_whole(*((result, dim) for dim in range(leading, len(r.shape(result)))))
