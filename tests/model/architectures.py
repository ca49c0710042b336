"""Architectures on which names are compared with layer types: transformers', the lab's, and plain layers.

All are made on the meta device, because only names, shapes and layer types are compared: real widths cost nothing.
"""

import torch
from gyroscope_lab.networks.registry import IMAGE_NETWORKS, image_network, text_network, translation_network
from torch import nn

import gyroscope as gyro
from gyroscope.model.by_name import splits_by_name
from gyroscope.model.parameters import model_parameters
from tests.model.zoo import Conv1D, Experts, TransposedExperts, tied, untied

# model_type -> class of transformers, and options of its configuration: real widths, few layers.
TRANSFORMERS = {
    "gpt2": ("GPT2LMHeadModel", {"n_layer": 1}),
    "llama": ("LlamaForCausalLM", {"num_hidden_layers": 1}),
    "mistral": ("MistralForCausalLM", {"num_hidden_layers": 1}),
    "qwen2": ("Qwen2ForCausalLM", {"num_hidden_layers": 1}),
    "gemma": ("GemmaForCausalLM", {"num_hidden_layers": 1}),
    "mixtral": ("MixtralForCausalLM", {"num_hidden_layers": 1}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {"num_hidden_layers": 1}),
    "gpt_oss": ("GptOssForCausalLM", {"num_hidden_layers": 1}),
    "gpt_neox": ("GPTNeoXForCausalLM", {"num_hidden_layers": 1}),
    "gptj": ("GPTJForCausalLM", {"n_layer": 1}),
    "opt": ("OPTForCausalLM", {"num_hidden_layers": 1}),
    "falcon": ("FalconForCausalLM", {"num_hidden_layers": 1}),
    "bloom": ("BloomForCausalLM", {"n_layer": 1}),
    "phi": ("PhiForCausalLM", {"num_hidden_layers": 1}),
    "mamba": ("MambaForCausalLM", {"num_hidden_layers": 1}),
    "bert": ("BertForMaskedLM", {"num_hidden_layers": 1}),
    "roberta": ("RobertaForMaskedLM", {"num_hidden_layers": 1}),
    "distilbert": ("DistilBertForMaskedLM", {"n_layers": 1}),
    "albert": ("AlbertForMaskedLM", {"num_hidden_layers": 1}),
    "electra": ("ElectraForPreTraining", {"num_hidden_layers": 1}),
    "deberta-v2": ("DebertaV2Model", {"num_hidden_layers": 1}),
    "xlnet": ("XLNetLMHeadModel", {"n_layer": 1}),
    "t5": ("T5ForConditionalGeneration", {"num_layers": 1}),
    "bart": ("BartForConditionalGeneration", {"encoder_layers": 1, "decoder_layers": 1}),
    "vit": ("ViTForImageClassification", {"num_hidden_layers": 1}),
    "deit": ("DeiTForImageClassification", {"num_hidden_layers": 1}),
    "beit": ("BeitForImageClassification", {"num_hidden_layers": 1}),
    "clip": ("CLIPModel", {"text_config": {"num_hidden_layers": 1}, "vision_config": {"num_hidden_layers": 1}}),
    "dinov2": ("Dinov2Model", {"num_hidden_layers": 1, "use_swiglu_ffn": True}),
    "segformer": ("SegformerForSemanticSegmentation", {"depths": [1, 1, 1, 1]}),
    "resnet": ("ResNetForImageClassification", {"depths": [1, 1, 1, 1]}),
    "convnext": ("ConvNextForImageClassification", {"depths": [1, 1, 1, 1]}),
    "swin": ("SwinForImageClassification", {"depths": [1, 1], "num_heads": [3, 6]}),
    "mobilenet_v2": ("MobileNetV2ForImageClassification", {}),
    "sam": ("SamModel", {"vision_config": {"num_hidden_layers": 1}}),
    "wav2vec2": ("Wav2Vec2ForCTC", {"num_hidden_layers": 1}),
    "hubert": ("HubertModel", {"num_hidden_layers": 1}),
    "whisper": ("WhisperForConditionalGeneration", {"encoder_layers": 1, "decoder_layers": 1}),
    "encodec": ("EncodecModel", {}),
    "vits": ("VitsModel", {"num_hidden_layers": 1}),
    "univnet": ("UnivNetModel", {}),
    "granitemoe": ("GraniteMoeForCausalLM", {"num_hidden_layers": 1}),
    "jetmoe": ("JetMoeForCausalLM", {"num_hidden_layers": 1}),
    "aria_text": ("AriaTextForCausalLM", {"num_hidden_layers": 1}),
    "ctrl": ("CTRLLMHeadModel", {"n_layer": 1}),
    "dac": ("DacModel", {}),
    "mask2former": ("Mask2FormerModel", {}),
    "depth_pro": ("DepthProModel", {}),
    "recurrent_gemma": ("RecurrentGemmaForCausalLM", {"num_hidden_layers": 3}),
    "layoutlmv3": ("LayoutLMv3Model", {"num_hidden_layers": 1}),
    "swinv2": ("Swinv2Model", {"depths": [1, 1], "num_heads": [3, 6]}),
    "speecht5": ("SpeechT5Model", {"encoder_layers": 1, "decoder_layers": 1}),
}

# Networks of the lab, in which norms are layers, parametrizations of the weights, or absent.
IMAGE = [(name, norm) for name in IMAGE_NETWORKS for norm in ("batch", "layer", "weight")]


def transformers_model(kind):
    """Make a model of Hugging Face's library without values."""
    import transformers

    class_name, options = TRANSFORMERS[kind]
    config = transformers.AutoConfig.for_model(kind, **options)
    with torch.device("meta"):
        return getattr(transformers, class_name)(config)


def lab_models():
    """Yield the networks of the lab by name."""
    with torch.device("meta"):
        for name, norm in IMAGE:
            yield f"{name}, {norm}", image_network(name, (3, 32, 32), 10, norm)
        yield "gpt", text_network("gpt", 65)
        yield "transformer", translation_network("transformer", 65)


def plain_layers():
    """Make the layers of torch, and those of the room's other tests, under names that mislead."""
    layers = {
        "normalizer": nn.Linear(8, 4),
        "embed_out": nn.Linear(8, 4, bias=False),
        "patch_embed": nn.Linear(8, 4, bias=False),
        "embedding_conv": nn.Conv1d(8, 4, 3),
        "embedding": nn.Conv2d(8, 4, 3, bias=False),
        "norm": nn.LayerNorm((4, 6)),
        "scale": nn.LayerNorm((4, 6, 8)),
        "rms_norm": nn.RMSNorm((4, 6)),
        "up": nn.ConvTranspose2d(8, 4, 3),
        "up_grouped": nn.ConvTranspose1d(8, 6, 3, groups=2),
        "up_depthwise": nn.ConvTranspose1d(8, 8, 3, groups=8),
        "up_with_gain": nn.utils.parametrizations.weight_norm(nn.ConvTranspose2d(8, 4, 3)),
        "deconv": nn.ConvTranspose2d(8, 8, 3),
        "conv_transpose": nn.ConvTranspose1d(8, 4, 3, bias=False),
        "one_output": nn.Conv2d(8, 1, 3),
        "linear": nn.Conv1d(8, 4, 1),
        "square": nn.Conv2d(8, 8, 3),
        "depthwise": nn.Conv1d(8, 8, 3, groups=8),
        "attention": nn.MultiheadAttention(8, 2, add_bias_kv=True),
        "attention_of_others": nn.MultiheadAttention(8, 2, kdim=4, vdim=6),
        "lstm": nn.LSTM(8, 4, bidirectional=True),
        "bilinear": nn.Bilinear(8, 4, 6),
        "with_gain": gyro.nn.add_gain(nn.Linear(8, 4)),
        "c_fc": Conv1D(32, 8),
        "experts": Experts(),
        "moe": TransposedExperts(),
        "shared": nn.Embedding(9, 8),
        "tied": tied(),
        "untied": untied(),
    }
    # Its square weight is decided by the other layers of its name.
    layers["h"] = nn.ModuleList([nn.ModuleDict({"c_proj": Conv1D(8, 32)}), nn.ModuleDict({"c_proj": Conv1D(8, 8)})])
    return nn.ModuleDict(layers)


def differences(model):
    """Return how many parameters a model has, and those on which names and types differ: name -> both answers.

    Names must give the same answer for `named_parameters()` and for a file, which may have tied weights several times.
    """
    parameters = model_parameters(model)
    by_name = splits_by_name({name: p.shape for name, p in model.named_parameters()})
    in_file = splits_by_name({name: value.shape for name, value in model.state_dict().items()})
    found = {}
    for known in parameters:
        by_type = (known.split, known.is_embedding)
        answers = [(answer.split, answer.is_embedding) for answer in (by_name[known.name], in_file[known.name])]
        if answers != [by_type, by_type]:
            found[known.name] = (by_type, *answers)
    return len(parameters), found
