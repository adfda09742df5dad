"""Launch scripts: what they set, which branches they take, and bounds."""

import textwrap
import time
from contextlib import suppress
from random import Random

import pytest

from projector.config.formats.shell.script import Script
from projector.errors import ConfigError


def test_shell_forms():
    script = Script(
        textwrap.dedent(
            r"""
            A=1; B="two words"; export C='it is $A'
            D=${A}_${B:-x}_${MISSING:-"de fault"}
            LIST=(a "b c" $A); LIST+=(d)
            for i in 1 2; do run --never; echo --nor-this; done
            cat <<EOF
            --not-an-argument
            EOF
            run "${LIST[@]}" $B "$B" $C "#no" x#y `date` $(date +"%s") # comment
            """
        )
    )
    assert script.variables["D"] == "1_two words_de fault"
    assert script.variables["LIST"] == ["a", "b c", "1", "d"]
    assert script.skipped == ["--never"]
    assert script.commands[-1][:8] == ["run", "a", "b c", "1", "d", "two", "words", "two words"]
    assert script.commands[-1][-4:] == ["#no", "x#y", "$(...)", "$(...)"]


@pytest.mark.parametrize("form", ['"${E[@]}"', "${E[@]}", '"${UNSET[@]}"', '"${E[@]}${E[*]}"'])
def test_an_empty_array_is_no_argument(form):
    script = Script(f"E=()\nrun a {form} b\nA=({form} c)")
    assert script.commands == [["run", "a", "b"]]
    assert script.variables["A"] == ["c"]


def test_an_array_within_quotes_keeps_what_is_around_it():
    script = Script('E=()\nL=(x "y z")\nrun "" "-${E[@]}" "$E" "<${L[@]}>"')
    assert script.commands == [["run", "", "-", "", "<x", "y z>"]]


def follow(text: str, path=None) -> Script:
    return Script(textwrap.dedent(text), path=path)


@pytest.mark.parametrize(
    ("condition", "taken"),
    [
        ('[[ "$DTYPE" == "fp8" ]]', True),
        ('[[ "$DTYPE" != fp8 ]]', False),
        ("[ ${DTYPE} = fp8 ]", True),
        ('[ "$DTYPE" = "fp8" -a "$NODES" -gt 8 ]', False),
        ('[[ "$DTYPE" == fp* && $NODES -ge 4 ]]', True),
        ('[[ "$DTYPE" == "bf16" ]] || [[ -z "$UNSET" ]]', True),
        ('[[ ( "$DTYPE" == bf16 || $NODES == 4 ) && ! -z $DTYPE ]]', True),
        ("! [ $NODES -eq 4 ]", False),
        ("(( NODES > 2 ))", True),
        ("(( $NODES % 4 ))", False),
        ('test "$DTYPE"', True),
        ("[ -v DTYPE ]", True),
        ("[[ -v UNSET ]]", False),
        ("[[ $# -gt 0 ]]", False),
        ("[ ${USE:-1} = 1 ]", True),
        ('[ "$(basename "$ENV")" = "a.yaml" ]', False),
        ("[[ ${LIST[@]} == *two* ]]", True),
        ("true && false", None),
        ("false", False),
        (":", True),
    ],
)
def test_constant_conditions_are_evaluated(condition, taken):
    script = follow(f"""
        DTYPE="fp8"; NODES=4; LIST=(one two)
        if {condition}; then run --then; elif true; then run --elif; else run --else; fi
        """)
    if taken is None:
        taken = False
    assert script.commands == [["run", "--then" if taken else "--elif"]]
    assert script.skipped == []


@pytest.mark.parametrize(
    "condition",
    [
        "[ -f file ]",
        "command -v nvidia-smi",
        '[[ "$(hostname)" == a ]]',
        "grep -q x f",
        "[[ a =~ b ]]",
    ],
)
def test_conditions_on_files_and_programs_are_left_open(condition):
    script = follow(f"if {condition}; then run --then; else run --else; fi; run --after")
    assert script.commands[-1] == ["run", "--after"]
    assert script.skipped == ["--then", "--else"]
    script = follow(f"X=(a)\n{condition} && X+=(--b)\n{condition} || X+=(--c)\nrun ${{X[@]}}")
    assert script.skipped[:1] == (["--b"] if condition.startswith("[") else [])


def test_a_branch_may_set_what_a_later_condition_looks_at():
    script = follow("""
        SIZE=39B
        if [ ${SIZE} == "1.7B" ]; then
            TP=1; EXTRA="--small "
        elif [ ${SIZE} == "39B" ]; then
            TP=8
            EXTRA="--large --chunks 2"
        fi
        PARAMS=" ${EXTRA} \\
            --tp ${TP} "
        [ $TP -eq 8 ] && PARAMS="$PARAMS --wide"
        CMD="python -u ${HOME_DIR}/train.py ${PARAMS}"
        srun -l sh -c "${CMD}"
        """)
    words = ["python", "-u", "${HOME_DIR}/train.py", "--large", "--chunks", "2", "--tp", "8"]
    assert script.commands[-1] == [*words, "--wide"]


def test_case_takes_the_arm_that_matches():
    script = follow("""
        MODEL=llama3-8b
        case $MODEL in
            gpt*|opt) run --gpt ;;
            (llama*) run --llama;;
            *) run --other
        esac
        case "$UNSET" in a) run --a;; *) run --default;; esac
        case $(uname) in Linux) run --linux;; esac
        """)
    assert script.commands == [["run", "--llama"], ["run", "--default"]]
    assert script.skipped == ["--linux"]
    assert script.left_out == {"UNSET": ["--a"]}


def test_unquoted_arrays_are_divided_quoted_ones_are_not():
    script = follow("""
        ARGS=("--fp8-format hybrid" "--split '99,1,0'")
        ARGS+=("--name two words")
        run ${ARGS[@]}
        run "${ARGS[@]}"
        ALL=(${ARGS[@]} --more)
        OLD=("${ALL[@]}" --newer); run ${#OLD[@]} "${OLD[-1]}" ${OLD[1]}
        """)
    divided = ["--fp8-format", "hybrid", "--split", "99,1,0", "--name", "two", "words"]
    assert script.commands[0] == ["run", *divided]
    assert script.commands[1] == [
        "run",
        "--fp8-format hybrid",
        "--split '99,1,0'",
        "--name two words",
    ]
    assert script.variables["ALL"] == [*divided, "--more"]
    assert script.commands[2][-1] == "hybrid"


def test_unresolved_words_do_not_hold_a_text_together():
    script = follow('ARGS="--a $UNSET --b 3 --c $(date +%s) --d"\nrun $ARGS')
    words = ["run", "--a", "${UNSET}", "--b", "3", "--c", "$(...)", "--d"]
    assert script.commands == [words]


def test_functions_run_where_they_are_called():
    script = follow("""
        train() { local tp=$1; run --tp $tp "${@}"; return 0; run --never; }
        function helper { train 4 --x; }
        helper
        run --done
        exit 0
        run --not-reached
        """)
    assert script.commands == [["run", "--tp", "4", "4", "--x"], ["run", "--done"]]
    assert follow("main() { run --uncalled; exit 0; }").commands == [["run", "--uncalled"]]


def test_a_script_that_gives_up_for_lack_of_a_value_goes_on():
    script = follow('if [ -z "$1" ]; then echo usage; exit 1; fi\nrun --a')
    assert script.commands == [["run", "--a"]]


def test_a_text_that_a_launcher_reads_is_followed():
    script = follow("""
        ARGS=(--a 1 --b)
        CMD="cd /x; export Y=1; python train.py ${ARGS[@]}"
        sbatch <<END
        #!/bin/bash
        srun --mpi=pmix bash -x -c "${CMD}" 2>&1 | tee \\${JOB}.log
        END
        cat <<'END'
        run --never $A
        END
        """)
    assert script.commands == [["python", "train.py", "--a", "1", "--b"]]


def test_scripts_that_a_script_runs_are_followed(tmp_path):
    (tmp_path / "inner.sh").write_text("python train.py $PARAMS --inner\n")
    outer = tmp_path / "outer.sh"
    for command in ("bash inner.sh", "sbatch -p x --nodes=2 inner.sh", "./inner.sh", ". inner.sh"):
        outer.write_text(f'PARAMS="--a"\n{command}\nexit 0\n')
        script = Script(outer.read_text(), path=outer)
        assert script.commands == [["python", "train.py", "--a", "--inner"]]
    assert script.launch == {}


def test_files_that_read_each_other_come_to_an_end(tmp_path):
    (tmp_path / "a.sh").write_text("run --a\nsource b.sh\n")
    (tmp_path / "b.sh").write_text("run --b\nsource a.sh\n")
    script = Script("source a.sh\nrun --end", path=tmp_path / "main.sh")
    assert script.commands[-1] == ["run", "--end"]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("${A:-x}", "abc.sh"),
        ("${B:-x y}", "x y"),
        ("${A:+yes}", "yes"),
        ("${B:+yes}", ""),
        ("${B:=set}", "set"),
        ("${A%.sh}", "abc"),
        ("${A##*.}", "sh"),
        ("${A#a}", "bc.sh"),
        ("${A%%.*}", "abc"),
        ("${A/b/-}", "a-c.sh"),
        ("${A^^}", "ABC.SH"),
        ("${A:1:2}", "bc"),
        ("${#A}", "6"),
        ("${B:?must be set}", "${B}"),
        ("$(( (N + 1) * 2 ))", "10"),
        ("$((N*${N}))", "16"),
        ("$((UNSET*2))", "$(...)"),
        ("$(dirname /a/b.sh)/c", "/a/c"),
        ("`basename /a/b.sh .sh`", "b"),
        ("$(date)", "$(...)"),
        ("$'tab'", "tab"),
        ("'$A'\"$A\"", "$Aabc.sh"),
    ],
)
def test_what_a_word_stands_for(expression, value):
    script = follow(f'A=abc.sh\nN=4\nX={expression}\nY="$X"')
    assert script.variables["Y"] == value


def test_arrays_by_number_and_by_key():
    script = follow("""
        declare -A CFG=([tp]=8 [pp]="4")
        CFG[cp]=2; CFG[tp]=16
        LIST=(a b c); LIST[1]=x
        run ${CFG[tp]} ${CFG["pp"]} ${CFG[cp]} ${CFG[none]} ${LIST[1]} ${LIST[-1]} ${LIST[9]} $LIST
        """)
    assert script.commands == [["run", "16", "4", "2", "${CFG}", "x", "c", "a"]]


def test_a_loop_that_trains_is_followed_once():
    script = follow("""
        for tp in 2 4 8; do
            ARGS="--tp $tp"
            torchrun train.py $ARGS
        done
        while true; do torchrun again.py; sleep 10; done
        for i in 1 2; do OTHER+=(--other $i); done
        for i in ""; do torchrun never.py; done
        for i in $UNSET_LIST; do torchrun --once x.py; done
        """)
    assert [words[1:] for words in script.commands][:2] == [["train.py", "--tp", "2"], ["again.py"]]
    assert script.loops == {"tp": ["2", "4", "8"]}
    assert script.skipped == ["--other"]


def test_of_an_open_condition_the_branch_that_trains_is_followed():
    script = follow("""
        if command -v srun; then echo x; A="--a"; else torchrun train.py --else; fi
        if [ ! -f data ]; then echo --missing; exit 1; elif [ -d x ]; then torchrun b.py; fi
        """)
    assert script.commands == [["torchrun", "train.py", "--else"], ["torchrun", "b.py"]]
    assert script.skipped == ["--a"]


def test_where_a_script_lies(tmp_path):
    file = tmp_path / "run.sh"
    script = Script('D="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"\nE=$PWD', path=file)
    assert script.variables == {"D": str(tmp_path), "E": str(tmp_path)}
    assert Script("D=$(pwd)").variables == {"D": "$(...)"}


@pytest.mark.rotated
@pytest.mark.parametrize(
    "text",
    [
        "(" * 200_000,
        "x " + "(" * 200_000,
        "A=(" + "(" * 200_000,
        "A=(x " + "([" * 200_000 + "a",
        "A=$((" + "(" * 200_000,
        "${" * 100_000,
        "$(" * 100_000,
        '"$(' * 100_000,
        "`" * 200_001,
        "{ " * 100_000,
        "if " * 100_000,
        "case x in a) " * 50_000,
        "f() " * 100_000,
        "[[ " + "! " * 100_000 + "]]",
        "[[ " + "( " * 100_000,
        "! " * 100_000,
        "<<A " * 100_000 + "\nx\n",
        "cat <<A\nA\n" * 50_000,
        "$" * 1_000_000,
        "#" * 3_000_000,
        "a" * 3_000_000,
        "''" * 1_000_000,
        "\\\n" * 1_000_000,
        "echo words " * 200_000,
        "A=1; " * 300_000,
        "A=$A$A\n" * 60,
        "A=x\n" + "A=$A$A\n" * 60,
        "A=" + "x" * 1_000_000 + "\n" + "B=${A%%*x*x*x}\n" * 100,
        "A=" + "*a" * 1000 + "b\nB=" + "a" * 2000 + "\n" + "[[ $B == $A ]]\n" * 500,
        "\n" * 3_000_000,
        ";" * 3_000_000,
        "&& " * 500_000,
        "| " * 500_000,
        "> " * 500_000,
        "source run.sh\n" * 10_000,
        "f() { f; f; f; f; }\nf",
        "x() { eval x; eval x; }; x",
        "eval '" + "eval " * 10_000 + "'",
    ],
)
def test_hostile_scripts_end_soon_with_an_error_or_without(text, tmp_path):
    file = tmp_path / "run.sh"
    file.write_text(text)
    began = time.perf_counter()
    with suppress(ConfigError):
        Script(text, path=file)
    assert time.perf_counter() - began < 20  # generous: each takes up to a second


def test_a_deep_script_names_the_line():
    with pytest.raises(ConfigError, match="line 2 is nested more than 50 deep"):
        Script("A=1\n" + "if true; then " * 60)


PIECES_TEXT = """
if then else elif fi for in do done while case esac function { } ( ) [[ ]] [ ] (( )) $(( $( ${ " '
` \\ ; ;; && || | & > < << <<E <<< ! = += A= A+=( B[2]= $A ${A} ${A[@]} "${A[@]}" ${A:-x} ${A:1:2}
${#A} ${A%%.*} ${A//a/b} ${A[-1]} $1 $@ $# -z -n -eq == != -v -f a x* --num-layers 2 torchrun
train.py -m echo source eval bash -c srun exit return shift set unset export declare f() f cd
$(dirname a/b) ([0]*3+[1]*5) ² ${²} ${A[²]} A[²]=1 ${A[99999999999]} $'x' `pwd`
"""


@pytest.mark.parametrize("seed", range(20))
def test_random_scripts_are_read_or_refused(seed, tmp_path):
    random = Random(seed)
    file = tmp_path / "run.sh"
    for _ in range(50):
        pieces = random.choices(
            [*PIECES_TEXT.split(), "\n", "\nE\n", "\\\n"], k=random.randint(1, 60)
        )
        text = "".join(piece + random.choice(["", " ", " "]) for piece in pieces)
        with suppress(ConfigError):
            Script(text, path=file)
