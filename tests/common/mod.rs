//! What the tests of the command line share: the program in a folder of its own, a small machine, and
//! runs that take their time.
#![allow(dead_code)] // each test file uses a part

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use assert_cmd::cargo::CommandCargoExt;
use serde_json::Value;
use tempfile::TempDir;

/// The program as it was built.
pub fn program() -> Command {
    Command::cargo_bin("plimsoll").expect("the program is built")
}

/// The program in an empty folder of its own.
pub struct Place {
    pub folder: TempDir,
}

impl Place {
    pub fn new() -> Place {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Place { folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("a file in a temporary folder");
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("a file in a temporary folder")
    }

    pub fn run(&self, line: &str) -> Output {
        let mut command = program();
        command.current_dir(self.folder.path());
        command.args(line.split_whitespace());
        command.output().expect("the program starts")
    }

    /// Runs a line that may write files of so many bytes only.
    pub fn run_with_small_files(&self, line: &str, bytes: u64) -> Output {
        let mut command = Command::new("sh");
        command.args(["-c", "exec prlimit --fsize=\"$0\" \"$@\""]);
        command.arg(bytes.to_string());
        command.arg(env!("CARGO_BIN_EXE_plimsoll"));
        command.args(line.split_whitespace());
        command.current_dir(self.folder.path());
        command.output().expect("a shell")
    }

    /// What a command prints that must work.
    pub fn text(&self, line: &str) -> String {
        let output = self.run(line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{line}\n{said}");
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    pub fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.text(line)).expect("JSON on standard output")
    }

    /// The one line that a command says that must fail with `code`; it must hold all `words`.
    pub fn refused(&self, line: &str, code: i32, words: &[&str]) -> String {
        let output = self.run(line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{line}\n{said}");
        assert!(said.starts_with("error: "), "{line}\n{said}");
        assert_eq!(said.lines().count(), 1, "{line}\n{said}");
        for word in words {
            assert!(said.contains(word), "{line}: no `{word}` in\n{said}");
        }
        said
    }
}

/// A small machine, which embeds what it does not state.
pub fn small_machine(tiers: &str) -> String {
    format!(
        "name = \"small\"\nextends = \"t4\"\nkind = \"emulated\"\n\
         [sources.stated]\nkind = \"published\"\nfrom = \"a test\"\ndate = \"2026\"\n\
         [tiers]\n{tiers}\n"
    )
}

pub const SMALL: &str = "\
device_capacity_bytes = { value = 60e6, source = \"stated\" }
device_reserved_bytes = { value = 0, source = \"stated\" }
host_capacity_bytes = { value = 400e6, source = \"stated\" }
host_reserved_bytes = { value = 0, source = \"stated\" }
disk_capacity_bytes = { value = 2e9, source = \"stated\" }";

pub const POLICY: &str = "--prompt-len 16 --gen-len 3 --gpu-batch-size 2 --num-gpu-batches 2 \
                      --percent 20 80 0 100 0 100";

pub fn tiny_opt() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("backend/tests/fixtures/tiny-opt");
    folder.display().to_string()
}

/// A plan for the committed checkpoint, and the flags that run it.
pub fn tiny_plan(place: &Place) {
    place.write("small.toml", &small_machine(SMALL));
    place.text(&format!(
        "simulate --hw small.toml --model {} --dtype f32 {POLICY} -o plan.json",
        tiny_opt()
    ));
}

/// A run that takes its time in the background.
pub struct SlowRun {
    pub child: Child,
}

impl SlowRun {
    /// Starts it with more flags, and waits until Ctrl-C is heard. Weights, cache and activations are on
    /// all tiers; a pass takes a few tenths of a second at 5 MB/s.
    pub fn start(place: &Place, flags: &str) -> SlowRun {
        SlowRun::placed(place, "20 40 0 50 0 100", flags)
    }

    pub fn placed(place: &Place, percent: &str, flags: &str) -> SlowRun {
        place.write("small.toml", &small_machine(SMALL));
        place.text(&format!(
            "simulate --hw small.toml --model {} --dtype f32 --prompt-len 16 --gen-len 110 \
             --gpu-batch-size 2 --num-gpu-batches 2 --percent {percent} -o plan.json",
            tiny_opt()
        ));
        SlowRun::of(place, &format!("run --plan plan.json {flags}"))
    }

    /// Starts a command, and waits until Ctrl-C is heard.
    pub fn of(place: &Place, line: &str) -> SlowRun {
        // As it is by default, a write beyond the limit would end the process by a signal.
        SlowRun::ignoring(place, "XFSZ", line)
    }

    /// The same which is started to ignore some signals.
    pub fn ignoring(place: &Place, signals: &str, line: &str) -> SlowRun {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("trap '' {signals}; exec \"$0\" \"$@\"")]);
        command.arg(env!("CARGO_BIN_EXE_plimsoll"));
        command.args(line.split_whitespace());
        command.current_dir(place.folder.path());
        let child = command.stderr(Stdio::piped()).spawn().expect("a shell");
        let run = SlowRun { child };
        while !run.hears_interrupts() {
            sleep(Duration::from_millis(5));
        }
        run
    }

    pub fn hears_interrupts(&self) -> bool {
        // The shell before it hears them too, and dies of them.
        let program = std::fs::read_link(self.proc("exe")).expect("a running process");
        if program.file_name() != Path::new(env!("CARGO_BIN_EXE_plimsoll")).file_name() {
            return false;
        }
        let status = self.read("status");
        let caught = status.lines().find_map(|l| l.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.expect("a running process").trim(), 16);
        caught.unwrap() >> (2 - 1) & 1 == 1
    }

    pub fn proc(&self, name: &str) -> PathBuf {
        Path::new("/proc")
            .join(self.child.id().to_string())
            .join(name)
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.proc(name)).expect("a running process")
    }

    /// The file of its disk tier, which has no name.
    pub fn disk_file(&self) -> PathBuf {
        let open = std::fs::read_dir(self.proc("fd")).expect("a running process");
        let mut open = open.map(|entry| entry.unwrap().path());
        let nameless = |path: &PathBuf| {
            let to = std::fs::read_link(path).unwrap_or_default();
            to.to_string_lossy().ends_with("(deleted)")
        };
        open.find(nameless).expect("a disk tier")
    }

    pub fn tell(&self, tool: &str, flags: &[&str]) {
        let mut command = Command::new(tool);
        command.args(flags).arg(self.child.id().to_string());
        assert!(command.status().expect(tool).success());
    }

    /// The most memory that it had, once it has ended well.
    pub fn peak_bytes(mut self) -> u64 {
        let mut peak = 0;
        while self.child.try_wait().expect("a child").is_none() {
            let status = std::fs::read_to_string(self.proc("status")).unwrap_or_default();
            let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
            peak = kib.map_or(peak, |kib| kib << 10);
            sleep(Duration::from_millis(5));
        }
        let output = self.child.wait_with_output().expect("it ended");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        peak
    }

    /// Its one line, once it has ended with `code`.
    pub fn ended(self, code: i32) -> String {
        let output = self.child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }
}
