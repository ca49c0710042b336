"""Networks have the published numbers of parameters, and every normalisation runs."""

from dataclasses import replace

import pytest
import torch
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.networks.gpt import GPT, GPTShape
from gyroscope_lab.networks.mobilenet import MobileNet
from gyroscope_lab.networks.registry import IMAGE_NETWORKS, image_network, text_network, translation_network
from gyroscope_lab.networks.resnet import resnet18, resnet20
from gyroscope_lab.networks.transformer import PADDING, EncoderDecoder, EncoderDecoderShape
from gyroscope_lab.networks.vgg import VGG
from gyroscope_lab.networks.vit import ViT, ViTShape

GPT2 = GPTShape(50_257, context=1024, layers=12, heads=12, width=768, bias=True)
GPT_30M = GPTShape(50_304, context=1024, layers=6, heads=6, width=384)


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (lambda: resnet20(3, 10), 269_722),  # He et al. 2016, Table 6: 0.27M
        (lambda: resnet18(3, 10), 11_173_962),  # 11.2M
        (lambda: MobileNet(3, 10), 2_236_682),  # torchvision's, with 10 classes
        (lambda: VGG(3, 10, 16), 14_728_266),  # 14.7M with one linear layer
        (lambda: VGG(3, 10, 13), 9_416_010),
        (lambda: ViT(ViTShape.paper()), 5_717_416),  # Touvron et al. 2021: 5.7M
        (lambda: GPT(GPT2), 124_439_808),  # GPT-2 small: 124M
        (lambda: GPT(GPT_30M), 30_331_776),  # CT Appendix H: 30M
    ],
    ids=["resnet20", "resnet18", "mobilenet", "vgg16", "vgg13", "deit-tiny", "gpt2", "gpt-30m"],
)
def test_the_number_of_parameters_is_the_published_one(make, parameters):
    with torch.device("meta"):
        assert count(make()) == parameters


def test_an_output_layer_of_its_own_has_as_many_parameters_as_the_embedding():
    with torch.device("meta"):
        assert count(GPT(replace(GPT_30M, tied=False))) == count(GPT(GPT_30M)) + 50_304 * 384


def test_transformer_s_has_the_size_of_the_published_layers():
    with torch.device("meta"):
        model = EncoderDecoder(EncoderDecoderShape.paper())
    # fairseq's transformer_iwslt_de_en: 6 layers a side, width 512, feed-forward networks of 1024, biases everywhere.
    attention = 4 * (512 * 512 + 512)
    feed_forward = 512 * 1024 + 1024 + 1024 * 512 + 512
    norm = 2 * 512
    assert count(model.encoder) == 6 * (attention + feed_forward + 2 * norm)
    assert count(model.decoder) == 6 * (2 * attention + feed_forward + 3 * norm)
    assert count(model) == count(model.encoder) + count(model.decoder) + 2 * norm + (10_000 + 1024) * 512
    with torch.device("meta"):
        assert translation_network(preset("re/transformer-s")["model"], 10_000).shape == model.shape


@pytest.mark.parametrize("norm", ["batch", "layer", "group", "weight", "none"])
@pytest.mark.parametrize("name", ["cnn:width=8", "resnet20", "mobilenet:width=0.1", "mlp:width=32"])
def test_every_normalisation_trains(name, norm):
    torch.manual_seed(0)
    model = image_network(name, (3, 16, 16), 10, norm)
    loss = model(torch.randn(4, 3, 16, 16)).logsumexp(1).mean()
    loss.backward()
    assert torch.isfinite(loss)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_resnet_of_one_block_a_stage_has_eight_layers():
    model = image_network("resnet20:width=4,blocks=1", (3, 8, 8), 10)
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) == 8
    assert layers[-1].weight.shape == (10, 16)


def test_standardised_weights_without_a_norm_behind_them_keep_the_size_of_signals():
    torch.manual_seed(0)
    model = image_network("cnn:width=64", (3, 16, 16), 10, "weight")
    x = torch.randn(8, 3, 16, 16)
    assert 0.5 < model.features[0](x).std() < 2
    assert 0.1 < model.features(x).std() < 2


@pytest.mark.parametrize("name", list(IMAGE_NETWORKS))
def test_every_image_network_takes_halved_cifar(name):
    torch.manual_seed(0)
    model = image_network(name, (3, 16, 16), 7)
    assert model(torch.randn(2, 3, 16, 16)).shape == (2, 7)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_gpt_sees_no_future(qk_norm):
    torch.manual_seed(0)
    model = GPT(GPTShape(11, context=8, layers=2, heads=2, width=16, qk_norm=qk_norm)).eval()
    tokens = torch.randint(11, (1, 8))
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 11
    before = model(tokens)
    after = model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])


@pytest.mark.parametrize(
    ("model", "deviation"),
    [
        (lambda: text_network("gpt:layers=2,width=64", 100), 0.02),
        (lambda: text_network("gpt:layers=2,width=64,fan_in_init=true", 100), 1 / 8),
        (lambda: image_network("vit:layers=1,width=64,heads=2", (3, 32, 32), 10), 0.02),
        (lambda: image_network("vit:layers=1,width=64,heads=2,fan_in_init=true", (3, 32, 32), 10), 1 / 8),
    ],
)
def test_transformers_start_at_the_given_scale(model, deviation):
    torch.manual_seed(0)
    weight = model().get_parameter("blocks.0.attention.qkv.weight")
    assert weight.std().item() == pytest.approx(deviation, rel=0.03)


def test_gpt_starts_at_the_loss_of_a_uniform_guess():
    torch.manual_seed(0)
    model = GPT(GPTShape(65))
    tokens = torch.randint(65, (4, 64))
    assert model.loss(tokens, tokens.roll(-1, 1)).item() == pytest.approx(torch.log(torch.tensor(65.0)).item(), abs=0.1)


def test_the_encoder_decoder_uses_its_source_and_sees_no_future_of_its_target():
    torch.manual_seed(0)
    model = EncoderDecoder(EncoderDecoderShape(11, context=8, layers=1, heads=2, width=16)).eval()
    source = torch.randint(11, (1, 6))
    target = torch.randint(11, (1, 8))
    logits = model(source, target)
    later = target.clone()
    later[0, 6] = (later[0, 6] + 1) % 11
    assert torch.equal(logits[:, :6], model(source, later)[:, :6])
    assert not torch.equal(logits, model((source + 1) % 11, target))


def test_padding_behind_a_source_or_a_target_changes_nothing():
    torch.manual_seed(0)
    model = EncoderDecoder(EncoderDecoderShape(11, context=12, layers=2, heads=2, width=16)).eval()
    source = torch.randint(1, 11, (2, 6))
    target = torch.randint(1, 11, (2, 5))
    filling = torch.full((2, 4), PADDING)
    logits = model(source, target)
    longer = model(torch.cat([source, filling], 1), torch.cat([target, filling], 1))
    torch.testing.assert_close(longer[:, :5], logits)


def test_the_encoder_decoder_drops_out_in_training_alone():
    torch.manual_seed(0)
    model = EncoderDecoder(EncoderDecoderShape(11, context=8, layers=1, heads=2, width=16, dropout=0.5))
    tokens = torch.randint(1, 11, (2, 6))
    assert not torch.equal(model(tokens, tokens), model(tokens, tokens))
    model.eval()
    assert torch.equal(model(tokens, tokens), model(tokens, tokens))


def test_an_unknown_network_or_option_is_named_with_what_there_is():
    with pytest.raises(ValueError, match="did you mean 'resnet20'"):
        image_network("resnet21", (3, 32, 32), 10)
    with pytest.raises(ValueError, match=r"unknown option 'depth'.*layers"):
        text_network("gpt:depth=3", 65)
    with pytest.raises(ValueError, match=r"unknown option 'depth'.*it has none"):
        image_network("resnet18:depth=3", (3, 32, 32), 10)
    with pytest.raises(ValueError, match=r"unknown option 'depth'.*it has width, blocks"):
        image_network("resnet20:depth=3", (3, 32, 32), 10)
    with pytest.raises(ValueError, match=r"unknown option 'depth'.*it has width, convolutions, pool_every, cells"):
        image_network("cnn:depth=3", (3, 32, 32), 10)
    with pytest.raises(ValueError, match=r"unknown model for this task 'gpt'.*transformer"):
        translation_network("gpt", 65)
    with pytest.raises(ValueError, match="'layers' is not of that form"):
        text_network("gpt:layers", 65)


def test_options_are_numbers_and_truth_values():
    model = text_network("gpt:layers=1,dropout=0.25,qk_norm=true", 65)
    assert (model.shape.layers, model.shape.dropout, model.shape.qk_norm) == (1, 0.25, True)


def test_a_plain_network_pools_and_averages_as_its_options_say():
    model = image_network("cnn:width=8,convolutions=2,pool_every=1,cells=7", (1, 28, 28), 10)
    assert model.features(torch.randn(2, 1, 28, 28)).shape == (2, 8, 14, 14)
    assert model.head.in_features == 8 * 7 * 7
