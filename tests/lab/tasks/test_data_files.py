"""Data sets in their official formats: read as published, and refused with the file's name where they are damaged."""

import gzip
import sys

import numpy as np
import pytest
import torch
from gyroscope_lab.tasks.files import DataError, read_cifar, read_idx
from gyroscope_lab.tasks.images import Images, augmented, load_images
from gyroscope_lab.tasks.text import BYTE_PAIRS, byte_pairs, load_text
from gyroscope_lab.tasks.translation import load_translation


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.tobytes()


@pytest.fixture
def mnist(tmp_path):
    """A small MNIST in a folder, one half of it compressed."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "mnist"
    folder.mkdir()
    for part, count in (("train", 20), ("t10k", 10)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    return tmp_path


def cifar_bytes(count, labels, classes, seed=0):
    rng = np.random.default_rng(seed)
    records = rng.integers(0, 256, (count, labels + 3072), dtype=np.uint8)
    records[:, :labels] = rng.integers(0, classes, (count, labels))
    return records


def test_idx_files_are_read_compressed_or_not(mnist):
    task = load_images("mnist", mnist)
    assert task.train.pixels.shape == (20, 1, 28, 28)
    assert task.test.labels.shape == (10,)
    assert task.train.pixels.mean().abs() < 1e-5
    assert task.train.pixels.std() == pytest.approx(1.0, abs=1e-3)


def test_a_truncated_idx_file_is_named(mnist):
    path = mnist / "mnist" / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"train-labels-idx1-ubyte' has 27 bytes, but its header says 28"):
        load_images("mnist", mnist)


def test_a_truncated_archive_is_named(mnist):
    path = mnist / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz' is damaged"):
        load_images("mnist", mnist)


def test_a_file_that_is_not_the_published_one_is_refused(mnist):
    (mnist / "mnist").rename(mnist / "fashion-mnist")
    with pytest.raises(DataError, match="not the published file"):
        load_images("fashion-mnist", mnist)


def test_cifar_records_are_label_and_channels(tmp_path):
    records = cifar_bytes(7, 1, 10)
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(records.tobytes())
    images, labels = read_cifar(path, 1, 10)
    assert np.array_equal(labels, records[:, 0])
    assert images[3, 1, 2, 5] == records[3, 1 + 1024 + 2 * 32 + 5]


def test_cifar100_takes_the_fine_label(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(cifar_bytes(4, 2, 20).tobytes())
    task = load_images("cifar100", tmp_path)
    assert task.classes == 100
    assert task.train.labels.tolist() == cifar_bytes(4, 2, 20)[:, 1].tolist()


def test_a_cut_record_and_a_wrong_label_are_errors(tmp_path):
    path = tmp_path / "test_batch.bin"
    path.write_bytes(cifar_bytes(2, 1, 10).tobytes()[:-1])
    with pytest.raises(DataError, match=r"test_batch.bin' has 6,145 bytes, not a multiple of a record's 3,073"):
        read_cifar(path, 1, 10)
    path.write_bytes(np.full(3073, 17, dtype=np.uint8).tobytes())
    with pytest.raises(DataError, match="a label 17, but the last class is 9"):
        read_cifar(path, 1, 10)


def test_the_error_for_a_missing_data_set_names_the_folders_and_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("GYROSCOPE_DATA", str(tmp_path))
    with pytest.raises(DataError, match=rf"{tmp_path}.*dataset-fashion-mnist.*--data-root or GYROSCOPE_DATA"):
        load_images("fashion-mnist")


def test_shrinking_averages_squares_of_pixels(mnist):
    whole = load_images("mnist", mnist)
    half = load_images("mnist", mnist, shrink=2)
    assert half.train.pixels.shape == (20, 1, 14, 14)
    assert (whole.padding, half.padding) == (4, 2)
    pooled = torch.nn.functional.avg_pool2d(whole.train.pixels, 2)
    correlation = torch.corrcoef(torch.stack([pooled.flatten(), half.train.pixels.flatten()]))[0, 1]
    assert correlation > 0.9999
    with pytest.raises(ValueError, match="shrink=3 does not divide images of 28×28"):
        load_images("mnist", mnist, shrink=3)


def test_augmentation_crops_and_flips_each_image_by_itself():
    pixels = torch.arange(2.0 * 1 * 6 * 6).view(2, 1, 6, 6) + 1
    images = Images(pixels, torch.tensor([0, 1]))
    crops = {
        augmented(images, True, torch.Generator().manual_seed(seed)).pixels[0].numpy().tobytes() for seed in range(200)
    }
    padded = torch.nn.functional.pad(pixels[0], (4,) * 4)
    expected = set()
    for top in range(9):
        for left in range(9):
            crop = padded[:, top : top + 6, left : left + 6].contiguous()
            expected |= {crop.numpy().tobytes(), crop.flip(2).contiguous().numpy().tobytes()}
    assert crops <= expected
    assert len(crops) > 80
    again = augmented(images, True, torch.Generator().manual_seed(7)).pixels
    assert torch.equal(again, augmented(images, True, torch.Generator().manual_seed(7)).pixels)


def test_a_text_is_split_once_and_its_windows_are_shifted_by_one(tmp_path):
    path = tmp_path / "poem.txt"
    path.write_text("abcdé" * 400, encoding="utf-8")
    corpus = load_text(f"text:{path}")
    train, validation = corpus.split()
    assert corpus.alphabet == 5
    assert (len(train.ids), len(validation.ids)) == (1800, 200)
    tokens, following = train.batch(3, 16, torch.Generator().manual_seed(0))
    assert torch.equal(tokens[:, 1:], following[:, :-1])


def test_a_text_is_looked_for_here_and_in_the_folder_of_data_sets(tmp_path, monkeypatch):
    (tmp_path / "poem.txt").write_text("abc" * 400, encoding="utf-8")
    assert load_text("text:poem.txt", tmp_path).alphabet == 3
    monkeypatch.setenv("GYROSCOPE_DATA", str(tmp_path))
    assert load_text("text:poem.txt").alphabet == 3
    with pytest.raises(DataError, match=rf"no file 'none.txt' here or in '{tmp_path}'.*--data-root or GYROSCOPE_DATA"):
        load_text("text:none.txt")


def test_a_text_in_byte_pairs_is_the_same_text_in_fewer_numbers(tmp_path):
    pytest.importorskip("tokenizers")
    line = "to be or not to be, that is the question: né?\n"
    path = tmp_path / "poem.txt"
    path.write_text(line * 60, encoding="utf-8")
    characters = load_text(f"text:{path}")
    pairs = load_text(f"bpe:{path}")
    assert pairs.alphabet <= BYTE_PAIRS
    assert int(pairs.ids.max()) < pairs.alphabet
    assert len(pairs.ids) < len(characters.ids) / 2
    period = len(pairs.ids) // 60  # numbers of a line
    assert torch.equal(pairs.ids[:-period], pairs.ids[period:])
    assert torch.equal(pairs.ids, byte_pairs.__wrapped__(path.read_text(encoding="utf-8")).ids)


def test_byte_pairs_without_the_package_name_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match="pip install tokenizers, or use text:<file>"):
        byte_pairs.__wrapped__("abc" * 400)


def test_texts_that_cannot_be_read_are_errors(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"\xe9" * 2000)
    with pytest.raises(DataError, match="is not UTF-8"):
        load_text(f"text:{path}")


@pytest.fixture
def parallel(tmp_path):
    """Parallel texts in a folder, one of them compressed."""
    folder = tmp_path / "talks"
    folder.mkdir()
    (folder / "train.de").write_text("ja\nnein\u2028doch\n", encoding="utf-8")
    (folder / "train.en.gz").write_bytes(gzip.compress(b"yes\nno, it is\n"))
    (folder / "valid.de").write_text("eins", encoding="utf-8")
    (folder / "valid.en").write_text("one\n", encoding="utf-8")
    return folder


def test_parallel_texts_are_read_line_by_line(parallel, tmp_path, monkeypatch):
    task = load_translation(f"translation:{parallel}")
    assert list(zip(task.train.sources, task.train.targets, strict=True)) == [
        ("ja", "yes"),
        ("nein\u2028doch", "no, it is"),
    ]
    assert (task.validation.sources, task.validation.targets) == (["eins"], ["one"])
    assert task.longest == len("nein_doch") + 1
    assert task.vocabulary == len(set("ja nein\u2028doch yes no, it is eins one")) + 2
    assert load_translation("translation:talks", tmp_path).longest == task.longest
    monkeypatch.chdir(tmp_path)
    assert load_translation("translation:talks").longest == task.longest


def test_parallel_texts_that_do_not_fit_are_errors(parallel, tmp_path):
    (parallel / "valid.en").write_text("one\ntwo\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"valid.de' has 1 lines and .*valid.en' 2: each line must translate"):
        load_translation(f"translation:{parallel}")
    (parallel / "valid.en").write_bytes(b"\xe9")
    with pytest.raises(DataError, match=r"valid.en' is not UTF-8"):
        load_translation(f"translation:{parallel}")
    with pytest.raises(DataError, match=rf"no file 'train.de' .*in {tmp_path}/none: put train.de, train.en, valid.de"):
        load_translation("translation:none", tmp_path)


def test_header_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00")
    with pytest.raises(DataError, match="not an IDX file"):
        read_idx(path, 1)
