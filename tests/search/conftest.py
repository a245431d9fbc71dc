import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """As the search itself does: threads only cost on networks of this size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
