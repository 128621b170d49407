import torch
from torch import nn

from lmtrain.inference.weight_layout import lay_out_for_dot_products, lay_out_for_one_token
from tests.inference.cached import build


def test_values_stay_and_matrices_lie_column_by_column():
    model, same = build("llama"), build("llama")
    lay_out_for_one_token(model)
    for name, weight in same.state_dict().items():
        assert torch.equal(model.state_dict()[name], weight)
    assert {module.weight.stride()[0] for module in model.modules() if isinstance(module, nn.Linear)} == {1}
    tokens = torch.randint(61, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():  # sums in another order: fp32's last digits
        torch.testing.assert_close(model(tokens), same(tokens), atol=1e-5, rtol=1e-5)
    lay_out_for_dot_products(model)
    assert torch.equal(model(tokens), same(tokens))
