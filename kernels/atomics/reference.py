"""PyTorch references of the operators in `atomics`."""

import torch


def sum_of_parts(x: torch.Tensor, order: str = "rows") -> tuple[torch.Tensor, torch.Tensor]:
    """Reference of `atomic_add_layout`: adds the parts one after another in the dtype of x."""
    _, rows, columns = x.shape
    total = x.new_zeros(rows, columns)
    for part in x:
        total = total + part
    whole = x.new_zeros(-(-rows // 16) * 16, -(-columns // 64) * 64)
    whole[:rows, :columns] = total
    if order == "pitch":
        return total, torch.nn.functional.pad(whole, (0, 8)).flatten()
    if order == "swizzle":  # unit u of row i moves to unit u ^ (i % 8)
        units = whole.unflatten(1, (-1, 8, 8))
        row = torch.arange(len(whole), device=x.device)[:, None] % 8
        from_unit = torch.arange(8, device=x.device) ^ row
        index = from_unit[:, None, :, None].expand_as(units)
        return total, units.gather(2, index).flatten()
    if order == "quads":  # [row blocks, half, 8 rows, column blocks, 4 pairs, 2]
        parts = whole.unflatten(1, (-1, 4, 2)).unflatten(0, (-1, 2, 8))
        return total, parts.permute(0, 3, 2, 4, 1, 5).flatten()
    return total, whole.flatten()


def cells_after(
    x: torch.Tensor, start: torch.Tensor, operation: str = "add", previous: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reference of `atomic_cells`, for any order of its operations.

    `add` rounds to the dtype of x after each operation: a bfloat16 cell of 256 stays 256.
    Cells of a floating dtype start at integers from 0.
    """
    cells, nothing = start.clone(), x.new_empty(0)
    count, operands = len(start), [x[cell :: len(start)] for cell in range(len(start))]
    touched = min(count, len(x))
    if operation == "load":
        return cells, start[torch.arange(len(x), device=x.device) % count]
    if operation == "store":
        cells[:touched] = x[:touched]
        return cells, nothing
    found = [nothing]
    for cell in range(touched):
        mine = operands[cell]
        if operation == "add":
            values = _after_ones(start[cell], len(mine))
            found.append(values[:-1])
            cells[cell] = values[-1]
        elif operation == "max":
            cells[cell] = torch.maximum(cells[cell], mine.max())
        elif operation == "min":
            cells[cell] = torch.minimum(cells[cell], mine.min())
        else:
            for operand in mine:
                cells[cell] |= operand
    if not previous:
        return cells, nothing
    if operation != "add":
        return cells, start[:touched].clone()
    return cells, torch.cat(found)


def _after_ones(start: torch.Tensor, count: int) -> torch.Tensor:
    """A cell after each of 0 to `count` additions of one, [count + 1].

    A floating dtype has all integers up to 2 / eps; one more than that rounds back to it.
    """
    values = start.double() + torch.arange(count + 1, device=start.device)
    if start.is_floating_point():
        values = values.clamp(max=max(start.item(), 2 / torch.finfo(start.dtype).eps))
    return values.to(start.dtype)
