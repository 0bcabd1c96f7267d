"""Malformed specs: every error in one load, each with line, column and message."""
# ruff: noqa: E501 - a message stands on one line here, as it does where it is printed

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tlmatrix.spec import SpecError, load_spec

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """\
name: trial
problem: attention
entry: mypkg.ops:attention
axes: {dtype: [float16], window: [none, 64], causal: [false, true]}
"""
DECL = """\
name: trial
entry: mypkg.ops:norm
axes: {dtype: [float16], rows: [1, 8]}
"""
KEYS = (
    "name, summary, problem, entry, constructor_args, factory, factory_args, call, defaults, "
    "returns, architectures, axes, compile_axes, shards, context, constraints, extra_cases, tiers, tolerance, checks, relations, agree, sanitizers, propagation, strict_autograd, determinism, cuda_graph, codegen, prove, tile, fuzz, invalid_inputs, known_bugs, regressions, bench"
)
DTYPES = (
    "float16, bfloat16, float32, float64, float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, "
    "float8_e5m2fnuz, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool"
)

MALFORMED: dict[str, tuple[str | bytes, list[str]]] = {
    "a key that does not exist": (
        HEAD + "constraint: []\n",
        ["5:1: unknown key 'constraint'; did you mean 'constraints'? Keys here: " + KEYS],
    ),
    "a key that does not exist, deep inside": (
        HEAD + "fuzz: {seqlens: {lenght: 0..8}}\n",
        [
            "5:18: unknown key 'lenght'; did you mean 'length'? Keys here: sequences, length, q, k, around, trace, alone"
        ],
    ),
    "a key with another case and dash": (
        HEAD + "known-bugs: []\n",
        ["5:1: unknown key 'known-bugs'; did you mean 'known_bugs'? Keys here: " + KEYS],
    ),
    "keys that are missing": (
        "summary: nothing else\n",
        [
            "1:1: the key 'axes' is missing",
            "1:1: the key 'entry' or 'factory' is missing; name the code under test",
            "1:1: the key 'name' is missing",
            "1:1: the key 'problem' is missing",
        ],
    ),
    "one bad item in a list is one error": (
        HEAD + "architectures: [hopper]\nrelations: [{permute: 3}]\nagree: [{axis: 3}]\n",
        [
            "5:17: 'architectures[0]' must be a target architecture, from sm_90 on with its letter, such as sm_80, sm_90a or sm_100a; got 'hopper'",
            "6:23: 'relations[0].permute' must be text; got 3",
            "7:16: 'agree[0].axis' must be text; got 3",
        ],
    ),
    "architectures": (
        HEAD + "architectures: [sm_90, hopper, sm_80, sm_80]\n",
        [
            f"5:{column}: 'architectures[{index}]' must be a target architecture, from sm_90 on with its letter, such as sm_80, sm_90a or sm_100a; got {got!r}"
            for column, index, got in ((17, 0, "sm_90"), (24, 1, "hopper"))
        ]
        + ["5:39: the architecture 'sm_80' appears twice"],
    ),
    "no architecture": (
        HEAD + "architectures: []\n",
        ["5:16: 'architectures' must have at least one entry; got []"],
    ),
    "both an entry and a factory": (
        HEAD + "factory: mypkg.kernels:make\ncall: [q]\n",
        ["5:1: a spec has an entry or a factory, not both; remove one"],
    ),
    "a factory without a call": (
        HEAD.replace("entry: mypkg.ops:attention", "factory: mypkg.kernels:make"),
        ["3:1: a factory needs 'call', the names its kernel is called with: call: [q, k, v]"],
    ),
    "arguments of a factory for an entry": (
        HEAD + "factory_args: {block: 64}\ncall: [q]\n",
        ["5:1: 'factory_args' belongs to a factory; write arguments of an entry in 'call'"],
    ),
    "arguments of an entry for a factory": (
        HEAD.replace("entry: mypkg.ops:attention", "factory: mypkg.kernels:make")
        + "call: [q]\nconstructor_args: {a: 1}\n",
        ["6:1: 'constructor_args' belongs to an entry; write 'factory_args' for a factory"],
    ),
    "arguments of a call": (
        HEAD + "call: [q, {output: y, fill: ones}, {inout: x}, {q: 1}, 2026-01-01]\n",
        [
            "5:29: 'call[1].fill' must be one of empty, zeros, nan; got 'ones'",
            "5:36: the key 'output' is missing in 'call[2]'",
            "5:48: the key 'output' is missing in 'call[3]'",
            "5:49: unknown key 'q'. Keys here: inout, output",
            (
                "5:56: 'call[4]' must be a name, an expression, a number, true, false, none, a list of these, "
                "{output: NAME}, or {inout: NAME, output: NAME}; got 2026-01-01"
            ),
        ],
    ),
    "results by a malformed path": (
        HEAD + "returns: {out: aux..1, lse: []}\n",
        [
            "5:16: 'returns.out' must be a path of keys, indices and attributes, such as aux.1; got 'aux..1'",
            "5:29: 'returns.lse' must be a path of keys, indices and attributes, such as aux.1; got []",
        ],
    ),
    "an output written twice, and arguments that do not reach the entry": (
        HEAD + "call: [q, {output: out}, {inout: k, output: out}]\nagree: [{set: {stages: 2}}]\n",
        [
            "5:26: 'out' is written twice",
            (
                "6:16: 'stages' is not passed to the entry: 'call' does not list it; make it an axis "
                "and add it to 'call'"
            ),
        ],
    ),
    "a reference whose names are not there": (
        DECL + "problem:\n  inputs: {x: {shape: [rows], dtype: $dtype}}\n  outputs: [y, z]\n"
        "  reference: {function: a:b, call: [x, {output: yy}], returns: [y, w, y]}\n",
        [
            "7:49: unknown output 'yy'; did you mean 'y'? Outputs: y, z",
            "7:64: the reference does not return 'z'; name it in 'returns'",
            "7:68: unknown output 'w'. Outputs: y, z",
            "7:71: 'y' is returned twice",
        ],
    ),
    "a reference in a dtype that it cannot have": (
        DECL + "problem:\n  inputs: {x: {shape: [rows], dtype: $dtype}}\n  outputs: [y]\n"
        "  reference: {function: a:b, dtype: float16}\n",
        [
            (
                "7:37: 'problem.reference.dtype' must be one of float64, float32, same; got 'float16'; "
                "did you mean 'float64'?"
            )
        ],
    ),
    "an entry that is no target": (
        HEAD.replace("mypkg.ops:attention", "mypkg.ops.attention"),
        ["3:8: 'entry' must be written package.module:name; got 'mypkg.ops.attention'"],
    ),
    "a name that cannot be one": (
        HEAD.replace("name: trial", "name: my trial"),
        ["1:7: 'name' must be made of letters, digits, '_', '-' and '.'; got 'my trial'"],
    ),
    "checks without unknown ones": (
        HEAD + "checks: {without: [propagation, numerics]}\n",
        [
            (
                "5:33: 'checks.without[1]' must be one of numeric, gradients, poison, guards, "
                "sanitizers, isolation, determinism, repeat, relations, agreement, propagation; "
                "got 'numerics'; did you mean 'numeric'?"
            )
        ],
    ),
    "checks with an unknown key": (
        HEAD + "checks: {witout: [propagation]}\n",
        [
            "5:1: the key 'without' is missing in 'checks'",
            "5:10: unknown key 'witout'; did you mean 'without'? Keys here: without",
        ],
    ),
    "no check": (HEAD + "checks: []\n", ["5:9: 'checks' must have at least one entry; got []"]),
    "text where a list belongs": (
        HEAD.replace("dtype: [float16]", "dtype: float16"),
        ["4:15: 'axes.dtype' must be a list; got 'float16'; write [float16]"],
    ),
    "a list where a mapping belongs": (
        HEAD + "tiers: [pairwise]\n",
        ["5:8: 'tiers' must be a mapping of keys to values; got [pairwise]"],
    ),
    "a number where text belongs": (
        HEAD + "summary: 12\n",
        ["5:10: 'summary' must be text; got 12"],
    ),
    "text where a number belongs": (
        HEAD + "tiers: {quick: {strategy: sample, size: '20'}}\n",
        ["5:41: 'tiers.quick.size' must be a whole number; got '20'"],
    ),
    "a fraction where a whole number belongs": (
        HEAD + "tiers: {quick: {strategy: sample, size: 2.5}}\n",
        ["5:41: 'tiers.quick.size' must be a whole number; got 2.5"],
    ),
    "true where a number belongs": (
        HEAD + "tolerance: {default: {factor: true}}\n",
        ["5:31: 'tolerance.default.factor' must be a number; got true"],
    ),
    "no axes": (
        HEAD.split("axes", maxsplit=1)[0] + "axes: {}\n",
        ["4:7: 'axes' must have at least one entry; got {}"],
    ),
    "an axis without values": (
        HEAD.replace("[float16]", "[]"),
        ["4:8: the axis 'dtype' has no values"],
    ),
    "a value twice": (
        HEAD.replace("[none, 64]", "[none, 64, 128, 64]"),
        ["4:50: the axis 'window' has 64 twice"],
    ),
    "values that ids cannot tell apart": (
        HEAD.replace("[float16]", "['a b', a_b]"),
        [
            "4:23: 'a_b' and 'a b' of the axis 'dtype' both read 'a_b' in a case id; make them differ"
        ],
    ),
    "an axis that is no name": (
        HEAD.replace("dtype:", "d-type:"),
        [
            "4:8: the name 'd-type' in 'axes' must be a name: letters, digits and '_', not a digit first"
        ],
    ),
    "an axis that expressions could not name": (
        HEAD.replace("dtype:", "in:").replace("causal:", "arch:"),
        [
            "4:8: an axis cannot be called 'in': that is a reserved word of expressions",
            "4:43: an axis cannot be called 'arch': expressions use that name for the run",
        ],
    ),
    "an empty entry of an axis": (
        "name: trial\nproblem: attention\nentry: a:b\naxes:\n  window:\n    -\n    - 64\n",
        ["6:6: an entry of a list is empty; write none for an absent value"],
    ),
    "a date on an axis": (
        HEAD.replace("[float16]", "[2027-03-01]"),
        ["4:16: 'axes.dtype[0]': 2027-03-01 is a date; quote it to make it text"],
    ),
    "an expression that does not parse": (
        HEAD + "constraints:\n  - {require: window is none or or causal, because: of that}\n",
        [
            "6:33: 'constraints[0].require': expected a value, got 'or': 'window is none or or causal'"
        ],
    ),
    "an expression with an unknown name": (
        HEAD + "constraints:\n  - {require: widow is none or causal, because: of that}\n",
        [
            "6:15: unknown name 'widow' in 'widow is none or causal'; did you mean 'window'? Names here: dtype, window, causal"
        ],
    ),
    "an expression with unquoted text": (
        HEAD.replace("float16", "half")
        + "constraints: [{require: dtype == half, because: of that}]\n",
        [
            "5:34: unknown name 'half' in 'dtype == half'; it is a value of the axis 'dtype', so quote it: 'half'"
        ],
    ),
    "an expression with two unknown names": (
        HEAD + 'constraints:\n  - because: of that\n    require: "casual or windw is none"\n',
        [
            "7:15: unknown name 'casual' in 'casual or windw is none'; did you mean 'causal'? Names here: dtype, window, causal",
            "7:25: unknown name 'windw' in 'casual or windw is none'; did you mean 'window'? Names here: dtype, window, causal",
        ],
    ),
    "a constraint about where a case runs": (
        HEAD + "constraints: [{require: arch == 'sm_90', because: of that}]\n",
        [
            "5:25: unknown name 'arch' in \"arch == 'sm_90'\"; it is known only when a case runs, so it cannot be used here"
        ],
    ),
    "a constraint that has no value for none": (
        HEAD + "constraints: [{require: window < 100, because: of that}]\n",
        ["5:32: 'window < 100' has no value for window=none: cannot compare none < 100"],
    ),
    "a constraint with an unknown key": (
        HEAD + "constraints: [{require: causal, reason: x}]\n",
        ["5:33: unknown key 'reason'. Keys here: require, when, because"],
    ),
    "a setting with a dot": (
        HEAD + "invalid_inputs: {x: {k.dtype: float64}}\n",
        ["5:21: 'invalid_inputs.x': {k.dtype: float64} has the key 'k.dtype'; write k: {dtype: …}"],
    ),
    "a constraint twice": (
        HEAD + "constraints: [{require: causal, because: x}, {require: causal, because: y}]\n",
        ["5:56: the constraint 'causal' appears twice"],
    ),
    "a constraint that is a number": (
        HEAD + "constraints: [3]\n",
        ["5:15: 'constraints[0]' must be a mapping of keys to values; got 3"],
    ),
    "a strategy that does not exist": (
        HEAD + "tiers: {quick: pairwize}\n",
        [
            "5:16: 'tiers.quick' must be product, zip, pairwise, t-wise (such as 3-wise), sample or first; got 'pairwize'; did you mean 'pairwise'?"
        ],
    ),
    "a strategy in full that does not exist": (
        HEAD + "tiers: {quick: {strategy: 0-wise}}\n",
        [
            "5:27: 'tiers.quick.strategy' must be product, zip, pairwise, t-wise (such as 3-wise), sample or first; got '0-wise'; did you mean '3-wise'?"
        ],
    ),
    "a sample without a size": (
        HEAD + "tiers:\n  quick: sample\n",
        ["6:3: the tier 'quick' samples, so it needs 'size', the number of cases"],
    ),
    "a size where none belongs": (
        HEAD + "tiers: {quick: {strategy: product, size: 3, seed: 1}}\n",
        [
            "5:36: 'size' belongs to sample and first; 'quick' is product",
            "5:45: 'seed' has no effect in the tier 'quick': product is not random",
        ],
    ),
    "a tier with unknown axes": (
        HEAD + "tiers: {quick: {strategy: product, axes: {dtipe: [float16]}}}\n",
        ["5:43: unknown axis 'dtipe'; did you mean 'dtype'? Axes: dtype, window, causal"],
    ),
    "a tier with an axis without values": (
        HEAD + "tiers: {quick: {strategy: product, axes: {dtype: []}}}\n",
        ["5:43: the axis 'dtype' has no values"],
    ),
    "an extra case with an unknown axis": (
        HEAD + "extra_cases:\n  - {windows: 3}\n",
        ["6:6: unknown axis 'windows'; did you mean 'window'? Axes: dtype, window, causal"],
    ),
    "an extra case twice": (
        HEAD + "extra_cases: [{window: 3}, {window: 3}]\n",
        ["5:28: the case {window: 3} appears twice"],
    ),
    "an empty case": (
        HEAD + "extra_cases: [{}]\n",
        ["5:15: 'extra_cases[0]' must have at least one entry; got {}"],
    ),
    "a regression with an unknown axis": (
        HEAD + "regressions: [{seqlens: [1]}]\n",
        ["5:16: unknown axis 'seqlens'. Axes: dtype, window, causal"],
    ),
    "a bench case with an unknown axis": (
        HEAD + "bench: {cases: [{casual: true}]}\n",
        ["5:18: unknown axis 'casual'; did you mean 'causal'? Axes: dtype, window, causal"],
    ),
    "a baseline that does not exist": (
        HEAD + "bench: {cases: [{causal: true}], baselines: [sdpa_cudn]}\n",
        [
            "5:46: unknown baseline 'sdpa_cudn'; did you mean 'sdpa_cudnn'? Baselines: reference_compiled, sdpa_cudnn, sdpa_efficient, sdpa_flash, torch, torch_varlen, or package.module:name"
        ],
    ),
    "a check that does not exist": (
        HEAD + "checks: [numeric, gradient]\n",
        [
            "5:19: 'checks[1]' must be one of numeric, gradients, poison, guards, sanitizers, isolation, determinism, repeat, relations, agreement, propagation; got 'gradient'; did you mean 'gradients'?"
        ],
    ),
    "a check twice, and none at all": (
        HEAD + "checks: [numeric, numeric]\n",
        ["5:19: the check 'numeric' appears twice"],
    ),
    "no checks": (HEAD + "checks: []\n", ["5:9: 'checks' must have at least one entry; got []"]),
    "a factor that allows nothing": (
        HEAD + "tolerance: {default: {factor: 0}, dq: {factor: -1}}\n",
        [
            "5:31: 'tolerance.default.factor' must be more than 0; got 0",
            "5:48: 'tolerance.dq.factor' must be more than 0; got -1",
        ],
    ),
    "a tolerance key that does not exist": (
        HEAD + "tolerance: {dq: {factr: 3}}\n",
        ["5:18: unknown key 'factr'; did you mean 'factor'? Keys here: mode, factor, floor, parts"],
    ),
    "a tolerance for no architecture": (
        HEAD + "tolerance: {by_arch: {hopper: {factor: 4}}}\n",
        [
            "5:23: the name 'hopper' in 'tolerance.by_arch' must be an architecture such as sm_90, or interpreter"
        ],
    ),
    "a mode that does not exist": (
        HEAD + "tolerance: {default: {mode: absolute}}\n",
        ["5:29: 'tolerance.default.mode' must be reference_relative; got 'absolute'"],
    ),
    "a sanitizer that does not exist": (
        HEAD + "sanitizers: {without: [fragment]}\n",
        [
            "5:24: 'sanitizers.without[0]' must be one of bounds, fragments, tables, guarded, uninitialised, unwritten, races, lanes, barriers, sequences, overreads, alignment, atomics, overflow, budget, lowering, nonfinite; got 'fragment'; did you mean 'fragments'?"
        ],
    ),
    "packed rows without boundaries": (
        HEAD + "sanitizers: {sequences: {dk: {dim: -1}}}\n",
        [
            "5:26: the key 'boundaries' is missing in 'sanitizers.sequences.dk'",
            "5:36: 'sanitizers.sequences.dk.dim' must be 0 or more; got -1",
        ],
    ),
    "a determinism that does not exist": (
        HEAD + "determinism: bitwize\n",
        [
            "5:14: 'determinism' must be one of bitwise, bounded; got 'bitwize'; did you mean 'bitwise'?"
        ],
    ),
    "codegen rules": (
        HEAD
        + "codegen:\n"
        + "  - {spills: -1, instructions: [WGMMA]}\n"
        + "  - {kernel: forward}\n"
        + "  - {when: archh == 'sm_80', spills: 0}\n"
        + "  - {source: ['dk_(desc']}\n",
        [
            "6:14: 'codegen[0].spills' must be 0 or more; got -1",
            "6:33: 'codegen[0].instructions[0]' must be a PTX instruction, such as wgmma.mma_async; got 'WGMMA'",
            "7:5: the codegen rule expects nothing; add instructions, spills, registers, …",
            "8:12: unknown name 'archh' in \"archh == 'sm_80'\"; did you mean 'arch'? Names here: dtype, window, causal, arch, backend",
            "9:15: 'codegen[3].source[0]' must be a regular expression: missing ), unterminated subpattern at position 3; got 'dk_(desc'",
        ],
    ),
    "a determinism rule about an unknown name": (
        HEAD + "determinism: [{when: backend == 'cuda' and casual, mode: bounded}]\n",
        [
            "5:44: unknown name 'casual' in \"backend == 'cuda' and casual\"; did you mean 'causal'? Names here: dtype, window, causal, arch, backend"
        ],
    ),
    "a range that is none": (
        HEAD + "fuzz: {seqlens: {sequences: 1-8}}\n",
        ["5:29: 'fuzz.seqlens.sequences' must be a range such as 1..8; got '1-8'"],
    ),
    "a range that is empty": (
        HEAD + "fuzz: {seqlens: {sequences: 8..1, length: [3, 2]}}\n",
        [
            "5:29: 'fuzz.seqlens.sequences': '8..1' is an empty range: 8 is more than 1",
            "5:43: 'fuzz.seqlens.length': [3, 2] is an empty range: 3 is more than 2",
        ],
    ),
    "fuzzing in a tier that does not exist": (
        HEAD + "fuzz: {examples: {quik: 20}}\n",
        [
            "5:19: unknown tier 'quik'; did you mean 'quick'? Tiers: quick, nightly, full, smoke, each"
        ],
    ),
    "a known bug without an issue": (
        HEAD + "known_bugs:\n  - when: causal\n    issue: #12\n    expires: 2027-03-01\n",
        ["7:5: 'issue' has no value; an unquoted # starts a comment"],
    ),
    "a file that ends in the middle of a key": (
        "name: x\nproblem: attention\niss&",
        ["3:5: not YAML: could not find expected ':'; a key needs ': ' after it"],
    ),
    "a dtype that is a list": (
        DECL.replace("[float16]", "[[float16]]")
        + "problem: {inputs: {x: {shape: [8], dtype: $dtype}}, outputs: [y], reference: a:b}\n",
        ["3:16: unknown dtype [float16]; did you mean 'float16'? Dtypes: " + DTYPES],
    ),
    "fuzzing an axis that does not exist, or has no numbers": (
        HEAD + "fuzz: {axes: {windw: 1..3, dtype: 1..3, window: {}, causal: {around: [3]}}}\n",
        [
            "5:15: unknown axis 'windw'; did you mean 'window'? Axes: dtype, window, causal",
            "5:28: the axis 'dtype' has no number among its values, so 'range' is invalid",
            "5:41: the key 'range' or 'values' is missing: give the values to generate",
            "5:62: 'around' needs 'range', such as range: 1..300",
        ],
    ),
    "fuzzing values that an axis has": (
        HEAD + "fuzz: {axes: {window: {values: [64, 3, 3]}}, storage: [sliced, sliced, slized]}\n",
        [
            "5:33: the axis 'window' has 64 already",
            "5:40: the axis 'window' has 3 already",
            "5:64: the storage 'sliced' appears twice",
            "5:72: 'fuzz.storage[2]' must be one of offset, sliced, transposed, ones, expanded; got 'slized'; did you mean 'sliced'?",
        ],
    ),
    "fuzzing lengths of no axis, in no sequence": (
        HEAD + "fuzz: {seqlens: {sequences: 0..3}}\n",
        [
            "5:8: 'fuzz.seqlens' needs the axis 'seqlens', which the spec does not have",
            "5:29: a batch needs at least 1 sequence; the range begins at 0",
        ],
    ),
    "fuzzing lengths as an axis": (
        HEAD.replace("axes: {", "axes: {seqlens: [[3]], ") + "fuzz: {axes: {seqlens: 1..3}}\n",
        ["5:15: the lengths of 'seqlens' are described in 'fuzz.seqlens'; move them there"],
    ),
    "a known bug with no date": (
        HEAD + "known_bugs: [{when: causal, issue: '#12', expires: soon}]\n",
        ["5:52: 'known_bugs[0].expires' must be a date, such as 2027-03-01; got 'soon'"],
    ),
    "a known bug with a date that does not exist": (
        HEAD + "known_bugs: [{when: causal, issue: '#12', expires: 2027-02-30}]\n",
        ["5:52: '2027-02-30' is not a date: day is out of range for month"],
    ),
    "a known bug about an unknown name": (
        HEAD
        + "known_bugs: [{when: arhc == 'sm_80', issue: '#12', expires: 2027-03-01, mode: ignore}]\n",
        [
            "5:21: unknown name 'arhc' in \"arhc == 'sm_80'\"; did you mean 'arch'? Names here: dtype, window, causal, arch, backend",
            "5:79: 'known_bugs[0].mode' must be one of tolerate, quarantine; got 'ignore'",
        ],
    ),
    "an invalid input without words": (
        HEAD + "invalid_inputs: {raises: Value Error, messages: {'': {window: 0}, x: 3}}\n",
        [
            "5:26: 'invalid_inputs.raises' must be an exception: a builtin one, or package.module:Class; got 'Value Error'",
            "5:50: the name '' in 'invalid_inputs.messages' must not be empty",
            "5:70: 'invalid_inputs.messages.x' must be settings (a mapping), or a list of them; got 3",
        ],
    ),
    "a malformed key that does not belong here, either": (
        HEAD
        + "factory_args: 3\ntiers: {other: {strategy: zip, seed: -1, size: 2}}\nconstrains: 3\n",
        [
            "5:1: 'factory_args' belongs to a factory; write arguments of an entry in 'call'",
            "5:15: 'factory_args' must be a mapping of keys to values; got 3",
            "6:38: 'tiers.other.seed' must be 0 or more; got -1",
            "7:1: unknown key 'constrains'; did you mean 'constraints'? Keys here: " + KEYS,
        ],
    ),
    "errors beside malformed entries, in their own places": (
        HEAD
        + "constraints: [{require: casual, becuase: x}, 3, {require: windw, because: y}]\n"
        + "extra_cases: [3, {window: 1}, {windw: 2}]\n"
        + "fuzz: {examples: {other: 3, quik: 3}}\ntiers: {other: often}\n",
        [
            "5:25: unknown name 'casual' in 'casual'; did you mean 'causal'? Names here: dtype, window, causal",
            "5:33: unknown key 'becuase'; did you mean 'because'? Keys here: require, when, because",
            "5:46: 'constraints[1]' must be a mapping of keys to values; got 3",
            "5:59: unknown name 'windw' in 'windw'; did you mean 'window'? Names here: dtype, window, causal",
            "6:15: 'extra_cases[0]' must be a mapping of keys to values; got 3",
            "6:32: unknown axis 'windw'; did you mean 'window'? Axes: dtype, window, causal",
            "7:29: unknown tier 'quik'; did you mean 'quick'? Tiers: other, quick, nightly, full, smoke, each",
            "8:16: 'tiers.other' must be product, zip, pairwise, t-wise (such as 3-wise), sample or first; got 'often'",
        ],
    ),
    "an axis list that is malformed as a whole": (
        HEAD.split("axes", maxsplit=1)[0]
        + "axes: [m]\nconstraints: [{require: m > 1, because: x}]\nextra_cases: [{m: 1}]\n",
        ["4:7: 'axes' must be a mapping of keys to values; got [m]"],
    ),
    "a key that looks like nothing else": (
        HEAD + "'<mapping>': 3\n",
        ["5:1: unknown key '<mapping>'. Keys here: " + KEYS],
    ),
    "a line end that editors do not know": (
        "name: trial\nsummary: a\u2028b\n",
        [r"2:11: the character '\u2028' is not allowed in a spec"],
    ),
    "a problem that does not exist": (
        HEAD.replace("problem: attention", "problem: attenton"),
        [
            "2:10: unknown problem 'attenton'; did you mean 'attention'? Problems: attention, collective, gemm, package.module:Class, or a mapping"
        ],
    ),
    "a declared problem without a reference": (
        DECL + "problem:\n  inputs:\n    x: {shape: [rows], dtype: $dtype}\n  outputs: [y]\n",
        [
            "4:1: the key 'reference' is missing in 'problem'; add it, or add 'relations' or 'agree' to check results without a reference"
        ],
    ),
    "a shape over an unknown axis": (
        DECL
        + "problem:\n  inputs: {x: {shape: [rows, 'rows * cols', -1], dtype: $dtpe}}\n  outputs: [y]\n  reference: a:b\n",
        [
            "5:38: unknown name 'cols' in 'rows * cols'. Names here: dtype, rows",
            "5:45: 'problem.inputs.x.shape[2]' must be 0 or more; got -1",
            "5:57: unknown axis '$dtpe'; did you mean '$dtype'? Axes: $dtype, $rows",
        ],
    ),
    "a shape over an unknown axis alone": (
        DECL
        + "problem:\n  inputs: {x: {shape: [rows, rows * cols], dtype: $dtpe}}\n  outputs: [y]\n  reference: a:b\n",
        [
            "5:37: unknown name 'cols' in 'rows * cols'. Names here: dtype, rows",
            "5:51: unknown axis '$dtpe'; did you mean '$dtype'? Axes: $dtype, $rows",
        ],
    ),
    "bounds over an unknown axis, beside a distribution": (
        DECL
        + "problem:\n  inputs: {x: {shape: [rows], dtype: $dtype, between: [0, row - 1], fill: normal}}\n  outputs: [y]\n  reference: a:b\n",
        [
            "5:59: unknown name 'row' in 'row - 1'; did you mean 'rows'? Names here: dtype, rows",
            "5:75: 'fill' and 'between' both define the values; remove one",
        ],
    ),
    "bounds that are no two": (
        DECL
        + "problem:\n  inputs: {x: {shape: [rows], dtype: $dtype, between: [0]}}\n  outputs: [y]\n  reference: a:b\n",
        ["5:55: 'between' needs two bounds, the least and the largest value; got 1"],
    ),
    "dtypes that do not exist": (
        DECL.replace("[float16]", "[float16, half]")
        + "problem:\n  inputs: {x: {shape: [rows], dtype: $dtype}, w: {shape: [rows], dtype: flaot32}}\n  outputs: [y]\n  reference: a:b\n",
        [
            "3:25: unknown dtype 'half'; did you mean 'float16'? Dtypes: " + DTYPES,
            "5:73: unknown dtype 'flaot32'; did you mean 'float32'? Dtypes: "
            + DTYPES
            + ", $dtype, $rows",
        ],
    ),
    "operands that are integers": (
        DECL
        + "problem:\n  inputs: {x: {shape: [rows], dtype: $dtype}}\n  outputs: [y]\n  reference: {function: a:b, operands: int8}\n",
        ["7:40: operands: int8 is no floating-point dtype"],
    ),
    "operands of an unknown axis": (
        DECL
        + "problem:\n  inputs: {x: {shape: [rows], dtype: $dtype}}\n  outputs: [y]\n  reference: {function: a:b, operands: $dtpe}\n",
        ["7:40: unknown axis '$dtpe'; did you mean '$dtype'? Axes: $dtype, $rows"],
    ),
    "tensors with taken names": (
        DECL
        + "problem:\n  inputs: {rows: {shape: [], dtype: $dtype}}\n  outputs: {dtype: {}, rows: {shape: [rows], dims: [a, b]}}\n  reference: a:b\n",
        [
            "5:12: the input 'rows' has the name of an axis",
            "6:13: the output 'dtype' has the name of an axis",
            "6:24: the output 'rows' has the name of an input",
            "6:52: 'dims' has 2 names, and the shape has 1 dimensions",
        ],
    ),
    "inputs with the names of constants": (
        DECL
        + "problem:\n  inputs: {float16: {shape: [rows], dtype: $dtype}, none: {shape: [rows], dtype: $dtype}}\n  outputs: [y]\n  reference: a:b\n",
        [
            "5:12: an input cannot be called 'float16': expressions read that as a constant; rename the input",
            "5:53: an input cannot be called 'none': expressions read that as a constant; rename the input",
        ],
    ),
    "a tolerance and a return that a declared problem does not have": (
        DECL
        + "problem:\n  inputs: {x: {shape: [rows], dtype: $dtype, grad: true}}\n  outputs: [y]\n  reference: a:b\nreturns: [z, y, y]\ntolerance: {dz: {factor: 3}, by_arch: {sm_90: {dxx: {factor: 3}}}}\n",
        [
            "8:11: unknown output 'z'. Outputs: dx, y",
            "8:17: 'y' is returned twice",
            "9:13: unknown tensor 'dz'. Tensors: dx, y",
            "9:48: unknown tensor 'dxx'; did you mean 'dx'? Tensors: default, dx, y",
        ],
    ),
    "a malformed argument": (
        HEAD.replace("entry: mypkg.ops:attention", "factory: mypkg.kernels:make")
        + "call: [q, 2k]\nfactory_args: {M: rows +, 2N: 1, K: [1]}\n",
        [
            "5:11: 'call[1]': '2k' is neither a number nor a name: '2k'",
            "6:25: 'factory_args.M': expected a value, but the expression ends: 'rows +'",
            "6:27: the name '2N' in 'factory_args' must be a name: letters, digits and '_', not a digit first",
            "6:37: 'factory_args.K' must be a number, true, false, none or an expression; got [1]",
        ],
    ),
    "a tile without size": (
        HEAD + "tile: {q: 0, k: 64 *, m: -3}\n",
        [
            "5:11: 'tile.q' must be 1 or more; got 0",
            "5:21: 'tile.k': expected a value, but the expression ends: '64 *'",
            "5:26: 'tile.m' must be 0 or more; got -3",
        ],
    ),
    "a key without a value": (
        HEAD + "constraints:\nextra_cases: none\n",
        ["5:1: 'constraints' has no value", "6:14: 'extra_cases' must be a list; got none"],
    ),
    "an empty file": ("", ["1:1: the file is empty"]),
    "only comments": ("# nothing here\n---\n", ["3:1: the file is empty"]),
    "a root that is a list": (
        "- name: trial\n",
        ["1:1: a spec is a mapping of keys to values, not [{name: trial}]"],
    ),
    "a root that is text": ("trial\n", ["1:1: a spec is a mapping of keys to values, not 'trial'"]),
    "a key twice": (
        HEAD + "entry: mypkg.ops:other\n",
        ["5:1: the key 'entry' appears twice; first in line 3"],
    ),
    "an axis twice": (
        "name: trial\nproblem: attention\nentry: a:b\naxes:\n  window: [1]\n  window: [2]\n",
        ["6:3: the key 'window' appears twice; first in line 5"],
    ),
    "booleans of old YAML": (
        HEAD.replace("[false, true]", "[no, yes, On, OFF]"),
        [
            "4:55: YAML parsers disagree on 'no': write false, or quote it: 'no'",
            "4:59: YAML parsers disagree on 'yes': write true, or quote it: 'yes'",
            "4:64: YAML parsers disagree on 'On': write true, or quote it: 'On'",
            "4:68: YAML parsers disagree on 'OFF': write false, or quote it: 'OFF'",
        ],
    ),
    "numbers of old YAML": (
        HEAD.replace("[none, 64]", "[010, 1:30, -007]"),
        [
            "4:35: YAML parsers disagree on '010': write 10, or quote it: '010'",
            "4:40: YAML parsers disagree on '1:30' (a number, base 60): quote it: '1:30'",
            "4:46: YAML parsers disagree on '-007': write -7, or quote it: '-007'",
        ],
    ),
    "a tab as indentation": (
        "name: trial\naxes:\n\tdtype: [float16]\n",
        ["3:1: a tab character; indent YAML with spaces"],
    ),
    "a bracket that never closes": (
        "name: trial\naxes: {dtype: [float16\nentry: a:b\n",
        ["3:6: not YAML: did not find expected ',' or ']'; a ']' or a comma is missing"],
    ),
    "a quote that never closes": (
        "name: 'trial\naxes: {}\n",
        ["3:1: not YAML: found unexpected end of stream; a quote or bracket was never closed"],
    ),
    "a colon in text": (
        "name: trial\nsummary: this: that\n",
        [
            "2:14: not YAML: mapping values are not allowed in this context; check indentation, or quote text that holds ': '"
        ],
    ),
    "text that begins with an at sign": (
        "name: @trial\n",
        [
            "1:7: not YAML: found character that cannot start any token; quote text that begins with this character"
        ],
    ),
    "bad indentation": (
        "name: trial\n  problem: attention\n",
        [
            "2:10: not YAML: mapping values are not allowed in this context; check indentation, or quote text that holds ': '"
        ],
    ),
    "a second document": (
        "name: trial\n---\nname: other\n",
        ["2:1: a second YAML document; a file has one spec, so remove '---'"],
    ),
    "a tag that would run code": (
        "name: !!python/object/apply:os.system ['true']\n",
        [
            "1:7: the tag '!!python/object/apply:os.system' is not allowed: a spec is plain data; remove it"
        ],
    ),
    "a tag of one's own": (
        "name: trial\naxes: !grid {}\n",
        ["2:7: the tag '!grid' is not allowed: a spec is plain data; remove it"],
    ),
    "an alias without an anchor": (
        "name: trial\naxes: *base\n",
        ["2:7: the alias *base has no anchor &base before it"],
    ),
    "an alias inside its anchor": (
        "name: trial\naxes: &base {dtype: [*base]}\n",
        ["2:22: the alias *base is inside the value that it refers to"],
    ),
    "a merge of something else": (
        "name: trial\naxes: {<<: 3}\n",
        ["2:8: '<<' merges a mapping, or a list of mappings"],
    ),
    "a key that is a list": ("name: trial\n? [a, b]\n: 3\n", ["2:3: a key must be a plain name"]),
    "a character that YAML does not have": (
        "name: trial\nsummary: a\x07b\n",
        ["2:11: the character '\\x07' is not allowed in a spec"],
    ),
    "bytes that are not UTF-8": (
        b"name: trial\nsummary: caf\xe9\n",
        ["2:13: the byte 0xe9 is not UTF-8 text; save the file as UTF-8"],
    ),
    "UTF-16": (
        "name: trial\n".encode("utf-16"),
        ["1:1: the file is UTF-16 text; save it as UTF-8"],
    ),
}
"""Malformed specs by description, each with all of its errors."""


@pytest.mark.parametrize("name", MALFORMED)
def test_every_error_is_reported_at_its_location(name: str, tmp_path: Path) -> None:
    text, expected = MALFORMED[name]
    path = tmp_path / "spec.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert str(caught.value).splitlines() == [f"{path}:{line}" for line in expected]
