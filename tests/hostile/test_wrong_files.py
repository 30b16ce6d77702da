"""Every real file is told for what it is."""

from pathlib import Path

import pytest

from firekeep.errors import FormatError, WrongFormatError
from firekeep.formats._detect import detect, identify
from firekeep.formats._diagnose import diagnose
from firekeep.sources import FileSource

CASES = Path(__file__).parents[1] / "data" / "cases" / "files"

KINDS = {
    "zip-part": (
        "hostile/libzip_multidisk.zip",
        "hostile/yauzl_multi_disk_zip_files_are_not_supported_found_disk_number_1.zip",
    ),
    "7z": ("hostile/picklescan_malicious1.7z",),
    "burn-record": ("burn/burn_modern_lstm_model.mpk",),
    "burnpack": (
        "burn/asterinas_mlp_weights.bpk",
        "burn/asterinas_mlp_weights_older.bpk",
        "burn/mnist_web_model.bpk",
    ),
    "ctranslate2": ("other/ctranslate2_i8_model.bin",),
    "empty": (
        "hostile/rs_test_header_too_small.safetensors",
        "hostile/yauzl_End_of_central_directory_record_signature_not_found_Either_not_a_zip_file_or_file_is_truncated_1.zip",
        "safetensors/sts_zero_len_file.safetensors",
    ),
    "equinox": ("other/equinox_multipart_serialised.eqx",),
    "gguf": ("other/las7_empty.gguf",),
    "hdf5": (
        "other/allennlp_lm_embeddings_1.hdf5",
        "other/cstudio_tiny.hdf5",
    ),
    "keras": (
        "other/art_model.keras",
        "other/keras_model.keras",
    ),
    "npy": (
        "hostile/picklescan_dns_exfiltration.npy",
        "hostile/picklescan_object_array.npy",
        "other/candle_test.npy",
        "other/mtcnn_pnet_object.npy",
    ),
    "npz": (
        "hostile/picklescan_object_arrays_compressed.npz",
        "other/candle_test.npz",
        "other/mlx_whisper_mel_filters.npz",
        "other/numpy_py2-objarr.npz",
    ),
    "onnx": (
        "other/anofox_graph_mitra_classification.onnx",
        "other/mnist.onnx",
    ),
    "png": ("hostile/picklescan_bad_pytorch.pt",),
    "pytorch": (
        "burn/asterinas_mlp_weights.pt",
        "burn/burn_batch_norm2d.pt",
        "burn/burn_bool.pt",
        "burn/burn_boolean.pt",
        "burn/burn_buffer.pt",
        "burn/burn_buffers.pt",
        "burn/burn_checkpoint.pt",
        "burn/burn_complex_structure.pt",
        "burn/burn_conv_transpose1d.pt",
        "burn/burn_debug_test.pt",
        "burn/burn_embedding.pt",
        "burn/burn_empty.pt",
        "burn/burn_enum_depthwise_false.pt",
        "burn/burn_enum_depthwise_true.pt",
        "burn/burn_extreme_values.pt",
        "burn/burn_float32.pt",
        "burn/burn_float64.pt",
        "burn/burn_group_norm.pt",
        "burn/burn_import_mnist_whole_model.pt",
        "burn/burn_int16.pt",
        "burn/burn_int64.pt",
        "burn/burn_int8.pt",
        "burn/burn_key_remap.pt",
        "burn/burn_key_remap~2.pt",
        "burn/burn_large_shape.pt",
        "burn/burn_linear.pt",
        "burn/burn_linear_with_bias.pt",
        "burn/burn_missing_module_field.pt",
        "burn/burn_mixed_types.pt",
        "burn/burn_mnist.pt",
        "burn/burn_model_without_enum_variants.pt",
        "burn/burn_non_contiguous_indexes.pt",
        "burn/burn_parameter.pt",
        "burn/burn_scalar.pt",
        "burn/burn_simple_legacy.pt",
        "burn/burn_simple_legacy~2.pt",
        "burn/burn_special_values.pt",
        "burn/burn_tar_2d_tensor.tar",
        "burn/burn_tar_float32.tar",
        "burn/burn_tar_float64.tar",
        "burn/burn_tar_weight_bias.tar",
        "burn/burn_tensor_2d.pt",
        "burn/burn_tensor_3d.pt",
        "burn/burn_test_int.pt",
        "burn/burn_top_level_key.pt",
        "burn/burn_weights_with_config.pt",
        "burn/lpips_squeeze.pt",
        "hostile/modelscan_unsafe_zip_pytorch.pt",
        "hostile/pickleball_call_system.pkl",
        "hostile/pickleball_call_system_inst.pkl",
        "hostile/picklescan_GHSA-86cj-95qr-2p4f.pkl",
        "hostile/picklescan_GHSA-f745-w6jp-hpxx.pkl",
        "hostile/picklescan_GHSA-jgw4-cr84-mqxg.bin",
        "hostile/picklescan_GHSA-m273-6v24-x4m4.pkl",
        "hostile/picklescan_GHSA-vv6j-3g6g-2pvj.pkl",
        "hostile/picklescan_broken_model.pkl",
        "hostile/picklescan_cloudpickle_codeinjection.pkl",
        "hostile/picklescan_keyerror-exploit.pkl",
        "hostile/picklescan_malicious-invalid-bytes.pkl",
        "hostile/picklescan_malicious0.pkl",
        "hostile/picklescan_malicious1.zip",
        "hostile/picklescan_malicious11.pkl",
        "hostile/picklescan_malicious19.pkl",
        "hostile/picklescan_malicious1_crc.zip",
        "hostile/picklescan_malicious1_v0.pkl",
        "hostile/picklescan_pytorch_magic_bypass.pt",
        "hostile/picklescan_pytorch_model.bin",
        "hostile/picklescan_type-confusion-exploit.pkl",
        "hostile/torch_dos_100MB.pt",
        "other/haiku_nested.pkl",
        "other/nanogpt_meta.pkl",
        "pytorch/TestSerialization.test_conv2d.state_dict.pt",
        "pytorch/TestSerialization.test_conv2d_nobias.input.pt",
        "pytorch/TestSerialization.test_conv3d.input.pt",
        "pytorch/TestSerialization.test_linear.state_dict.pt",
        "pytorch/TestSerialization.test_linear_dynamic_float16.state_dict.pt",
        "pytorch/TestSerialization.test_linear_relu_package_quantization_transforms.get_attr_targets.pt",
        "pytorch/TestSerialization.test_lstm.expected.pt",
        "pytorch/TestSerialization.test_lstm.state_dict.pt",
        "pytorch/TestSerialization.test_per_channel_observer.state_dict.pt",
        "pytorch/TorchSharp.PyBridge_adadelta_load.pth",
        "pytorch/TorchSharp.PyBridge_adam_emptystate_load.pth",
        "pytorch/TorchSharp.PyBridge_nadam_load.pth",
        "pytorch/TorchSharp.PyBridge_tensors.pth",
        "pytorch/allennlp_elmo_align_numpy.pth",
        "pytorch/allennlp_elmo_align_zero.pth",
        "pytorch/allennlp_masked_lm_best.th",
        "pytorch/allennlp_simple_tagger_best.th",
        "pytorch/allennlp_srl_cuda_best.th",
        "pytorch/allennlp_training_state_e1_b0.th",
        "pytorch/anofox_tiny.ckpt",
        "pytorch/bumblebee_noncontiguous_numpy_array.legacy.pt",
        "pytorch/bumblebee_noncontiguous_numpy_array.zip.pt",
        "pytorch/bumblebee_noncontiguous_tensor.legacy.pt",
        "pytorch/bumblebee_noncontiguous_tensor.zip.pt",
        "pytorch/bumblebee_ordered_dict.legacy.pt",
        "pytorch/bumblebee_ordered_dict.zip.pt",
        "pytorch/bumblebee_state_dict_full.zip.pt",
        "pytorch/bumblebee_storage_view.legacy.pt",
        "pytorch/bumblebee_tensors.legacy.pt",
        "pytorch/bumblebee_tensors.zip.pt",
        "pytorch/candle_boolean.pt",
        "pytorch/candle_config.pt",
        "pytorch/candle_fortran_tensor_3d.pth",
        "pytorch/candle_test.pt",
        "pytorch/candle_test_with_key.pt",
        "pytorch/coqui_lj_parameters.pt",
        "pytorch/diffusers_cat.pt",
        "pytorch/executorch_KeywordSpotting_model.pth",
        "pytorch/facenet_mtcnn_pnet.pt",
        "pytorch/fastai_learned_embeds.bin",
        "pytorch/fdet_mtcnn_pnet.pt",
        "pytorch/gail_trajs_double.pt",
        "pytorch/gopickle_tensor_bool_proto1.pt",
        "pytorch/gopickle_tensor_float16_proto4.pt",
        "pytorch/gopickle_tensor_float32_proto1.pt",
        "pytorch/gopickle_tensor_float32_proto2.pt",
        "pytorch/gopickle_tensor_int16_proto1_zip.pt",
        "pytorch/gopickle_tensor_int64_proto5.pt",
        "pytorch/gopickle_tensor_int8_proto4_zip.pt",
        "pytorch/gopickle_tensor_uint8_proto2_zip.pt",
        "pytorch/gpytorch_old_variational_strategy_model.pth",
        "pytorch/gpytorch_sm_kernel_state_dict.pth",
        "pytorch/hf_trainer_rng_state_np1.pth",
        "pytorch/lightning_mlp-coral_epoch=114-step=2529.ckpt",
        "pytorch/lightning_mlp-niu_epoch=178-step=3937.ckpt",
        "pytorch/lightning_mnist_test.pt",
        "pytorch/lpips_v0.0_alex.pth",
        "pytorch/lpips_v0.0_squeeze.pth",
        "pytorch/lpips_v0.0_vgg.pth",
        "pytorch/lpips_v0.1_alex.pth",
        "pytorch/lpips_v0.1_squeeze.pth",
        "pytorch/lpips_v0.1_vgg.pth",
        "pytorch/peft_lora_emb_conv1d_adapter_model.bin",
        "pytorch/picklejl_bool.bin",
        "pytorch/picklejl_offset-strides.bin",
        "pytorch/picklejl_slice.bin",
        "pytorch/picklejl_strides.bin",
        "pytorch/ppo_oldest_InvertedDoublePendulum-v1.pt",
        "pytorch/pytorch3d_camera_graph.pth",
        "pytorch/pytorch3d_icp_data.pth",
        "pytorch/pytorch3d_objectron_vols_ious.pt",
        "pytorch/rtorch_linear.pt",
        "pytorch/rtorch_state_dict.pth",
        "pytorch/script_module_v4.ptl",
        "pytorch/script_module_v6.ptl",
        "pytorch/sd21_text_inv.pt",
        "pytorch/skorch_net_cuda.pt",
        "pytorch/skorch_optimizer_cuda.pt",
        "pytorch/test_interpreter_async.pt",
        "pytorch/test_versioned_div_tensor_v3.pt",
        "pytorch/torchserve_dummy_torchscript.pt",
        "pytorch/torchserve_iris.pt",
        "pytorch/torchserve_mnist_0_png.pt",
        "pytorch/torchsharp_linrelu.script.dat",
        "pytorch/torchtune_tiny_state_dict_with_one_key.pt",
        "pytorch/torchvision_gaussian_blur_results.pt",
        "pytorch/udacity_dqn_checkpoint.pth",
    ),
    "safetensors": (
        "burn/burn_batch_norm2d.safetensors",
        "burn/burn_boolean.safetensors",
        "burn/burn_buffer.safetensors",
        "burn/burn_mnist.safetensors",
        "hostile/rs_test_invalid_header_non_utf8.safetensors",
        "hostile/rs_test_invalid_header_not_json.safetensors",
        "hostile/rs_test_metadata_incomplete_buffer.safetensors",
        "hostile/rs_test_metadata_incomplete_buffer_2.safetensors",
        "hostile/rs_test_validation_overflow_2.safetensors",
        "hostile/rs_test_whitespace_leading_padded_header.safetensors",
        "hostile/rs_test_whitespace_padded_header.safetensors",
        "hostile/safetensors_abuse_attempt_2_scaled2000.safetensors",
        "hostile/safetensors_abuse_attempt_3_scaled1000.safetensors",
        "safetensors/anofox_orion_bix_orig_mod.safetensors",
        "safetensors/candle_csm_voices.safetensors",
        "safetensors/candle_jfk-codes.safetensors",
        "safetensors/checkpoint-studio_diff_new.safetensors",
        "safetensors/checkpoint-studio_diff_old.safetensors",
        "safetensors/cstudio_tiny.safetensors",
        "safetensors/djl_list.safetensors",
        "safetensors/fastsafetensors_a.safetensors",
        "safetensors/fastsafetensors_b.safetensors",
        "safetensors/fluxml_all_dtypes_with_metadata.safetensors",
        "safetensors/fluxml_numpy_writer.safetensors",
        "safetensors/fluxml_shard/model-00001-of-00006.safetensors",
        "safetensors/fluxml_shard/model-00002-of-00006.safetensors",
        "safetensors/fluxml_shard/model-00003-of-00006.safetensors",
        "safetensors/fluxml_shard/model-00004-of-00006.safetensors",
        "safetensors/fluxml_shard/model-00005-of-00006.safetensors",
        "safetensors/fluxml_shard/model-00006-of-00006.safetensors",
        "safetensors/heinrich_tiny.safetensors",
        "safetensors/las7_tiny_trailing.safetensors",
        "safetensors/nutllm_tiny.safetensors",
        "safetensors/pybridge_tensors.safetensors",
        "safetensors/runai_test_empty.safetensors",
        "safetensors/sae_test.safetensors",
        "safetensors/sts_basic_model.safetensors",
        "safetensors/sts_with_metadata.safetensors",
    ),
    "safetensors-index": ("safetensors/fluxml_shard/model.safetensors.index.json",),
    "stable-baselines3": ("pytorch/sb3_a2c_CartPole-v1.zip",),
    "tar": (
        "hostile/cpython_recursion.tar",
        "hostile/djl_offending.tar",
    ),
    "tar.gz": ("pytorch/allennlp_next_token_lm_model.tar.gz",),
    "text": ("hostile/libzip_bogus.zip",),
    "torch-package": (
        "pytorch/TestSerialization.test_linear_relu_package_quantization_transforms.package.pt",
        "pytorch/torch_package_torchscript_module.pt",
    ),
    "torch7": (
        "other/torch7_gmodule_linear.t7",
        "other/torch7_recursive_kv_table.t7",
    ),
    "torchscript-v1": ("pytorch/tchrs_foo_v1.pt",),
    "torchserve": ("other/torchserve_noop.mar",),
    "unknown": (
        "hostile/picklescan_not_a_pickle.bin",
        "other/llama2c_tiny.bin",
        "other/tfjs_layers_weights.bin",
        "pytorch/torchsharp_adam1.dat",
    ),
    "zip": (
        "hostile/cpython_zipdir_backslash.zip",
        "hostile/djl_zip_traversal.zip",
        "hostile/djl_zip_windows_root.zip",
        "hostile/libzip_bigzero-zip.zip",
        "hostile/libzip_encrypt-aes256.zip",
        "hostile/libzip_filename_empty.zip",
        "hostile/libzip_incons-gap-before-local.zip",
        "hostile/libzip_incons-trailing-garbage.zip",
        "hostile/libzip_junk-at-start.zip",
        "hostile/picklescan_malicious1_0x20.zip",
        "hostile/yauzl_Invalid_comment_length_Expected_1_Found_0_Are_there_extra_bytes_at_the_end_of_the_file_Or_is_the_end_of_central_dir_signature_PK_in_the_com.zip",
        "hostile/yauzl_too_many_length_or_distance_symbols.zip",
    ),
    "zip-damaged": (
        "hostile/libzip_filename_duplicate.zip",
        "hostile/libzip_incons-cdoffset.zip",
        "hostile/libzip_incons-central-size-larger.zip",
        "hostile/libzip_incons-file-count-overflow.zip",
        "hostile/libzip_incons-zip64-checkcons-overflow.zip",
        "hostile/picklescan_malicious1_central_directory.zip",
        "hostile/yauzl_absolute_path_C_xt.zip",
        "hostile/yauzl_absolute_path_atxt.zip",
        "hostile/yauzl_invalid_characters_in_fileName_a_txt.zip",
        "hostile/yauzl_invalid_zip64_end_of_central_directory_record_signature.zip",
        "hostile/yauzl_not_enough_bytes_in_the_stream_expected_2048576_got_only_1000000.zip",
        "hostile/yauzl_unexpected_EOF.zip",
        "hostile/yauzl_wrong_entry_sizes.zip",
        "hostile/yauzl_zip64_extended_information_extra_field_does_not_include_compressed_size.zip",
        "hostile/yauzl_zip64_extended_information_extra_field_does_not_include_relative_header_offset.zip",
        "hostile/yauzl_zip64_extended_information_extra_field_does_not_include_uncompressed_size.zip",
    ),
    "zip-empty": ("hostile/libzip_testempty.zip",),
    "zip-encrypted": (
        "hostile/picklescan_malicious1_0x40.zip",
        "hostile/modelscan_password_protected.zip",
        "hostile/yauzl_strong_encryption_is_not_supported.zip",
    ),
    "zip-truncated": (
        "hostile/yauzl_End_of_central_directory_record_signature_not_found_Either_not_a_zip_file_or_file_is_truncated.zip",
    ),
}
READ = {
    "burnpack": "burnpack",
    "safetensors": "safetensors",
    "pytorch": "pytorch",
    "npy": "numpy",
    "npz": "numpy",
    "hdf5": "hdf5",
    "keras": "hdf5",
    "gguf": "gguf",
}
FILES = [(path, kind) for kind, paths in KINDS.items() for path in paths]

# What the refusal of a file must say, and the command or the call that its next step must name.
SAID = {
    "pytorch/sb3_a2c_CartPole-v1.zip": ("PyTorch files inside a zip archive", "policy.pth`"),
    "pytorch/allennlp_next_token_lm_model.tar.gz": ("gzip-compressed tar archive with 'weights.th'", " weights.th`"),
    "pytorch/torch_package_torchscript_module.pt": ("torch.package", "state_dict()"),
    "pytorch/tchrs_foo_v1.pt": ("model.json instead of data.pkl", "torch.jit.load"),
    "other/torchserve_noop.mar": ("its 'model.pt' is empty (0 bytes)", "unzip"),
    "other/mnist.onnx": ("an ONNX model", "onnx.load"),
    "other/torch7_gmodule_linear.t7": ("Lua Torch7", "torchfile.load"),
    "other/equinox_multipart_serialised.eqx": ("an Equinox file", "tree_deserialise_leaves"),
    "other/mtcnn_pnet_object.npy": ("a NumPy .npy file of a kind that firekeep does not read", "plain arrays"),
    "hostile/picklescan_dns_exfiltration.npy": ("a NumPy .npy file of a kind", "would run their pickles"),
    "burn/burn_modern_lstm_model.mpk": ("a Burn record in MessagePack", "BurnpackStore"),
    "safetensors/fluxml_shard/model.safetensors.index.json": (
        "the index of a sharded safetensors checkpoint in 6 files",
        "by its path",
    ),
    "hostile/picklescan_malicious1.7z": ("a 7z archive", "7z x"),
    "hostile/picklescan_bad_pytorch.pt": ("a PNG image", "the weights"),
    "hostile/picklescan_malicious1_0x20.zip": ("'model/config.pkl' is a patch of another file", "the weights"),
    "hostile/yauzl_too_many_length_or_distance_symbols.zip": ("'index.js' has damaged compressed data", "the weights"),
    "hostile/libzip_encrypt-aes256.zip": ("zip member 'encrypted' is encrypted", "the weights"),
    "hostile/modelscan_password_protected.zip": ("an encrypted zip archive", "no passwords"),
}


def test_the_table_covers_every_file_there_is():
    present = {str(path.relative_to(CASES)) for path in CASES.rglob("*") if path.is_file()}
    assert {path for path, _ in FILES} <= present
    assert len(FILES) == 273


@pytest.mark.parametrize(("path", "kind"), FILES, ids=[path for path, _ in FILES])
def test_a_file_is_told_by_its_content(path, kind):
    source = FileSource(CASES / path)
    identity = identify(source)
    assert identity.kind == kind
    assert identity.format == READ.get(kind)
    if identity.error is not None:
        with pytest.raises(FormatError):
            detect(source)
    elif identity.format is None:
        assert identity.next_step
        with pytest.raises(WrongFormatError, match=r": this is "):
            detect(source)


@pytest.mark.parametrize("path", SAID)
def test_a_wrong_file_is_refused_with_its_name_and_a_next_step(path):
    title, step = SAID[path]
    diagnosis = diagnose(FileSource(CASES / path))
    assert not diagnosis.opens
    assert title in diagnosis.title
    assert step in (diagnosis.next_step or "")
    assert title in str(diagnosis)
    assert diagnosis.to_dict()["kind"] == diagnosis.kind


def test_the_shards_and_the_tensors_of_an_index_are_counted():
    diagnosis = diagnose(FileSource(CASES / "safetensors/fluxml_shard/model.safetensors.index.json"))
    assert dict(diagnosis.facts)["tensors"] == "36"
    assert dict(diagnosis.facts)["shards"] == "6"


def test_an_onnx_model_names_the_file_of_its_weights():
    diagnosis = diagnose(FileSource(CASES / "other/anofox_graph_mitra_classification.onnx"))
    assert dict(diagnosis.facts)["weights in"] == "'graph_mitra_classification.onnx.data'"
    assert dict(diagnosis.facts)["producer"] == "pytorch"
