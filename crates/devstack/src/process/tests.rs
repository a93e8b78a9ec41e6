use super::*;

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

fn server(script: &str, log: &Path) -> Server {
    Server::start(Launch {
        command: shell(script),
        log: log.to_owned(),
        life: Life::Attached(Signal::SIGKILL),
    })
    .unwrap()
}

#[test]
fn start_time_is_found_behind_any_name() {
    let stat = "17 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20";
    assert_eq!(parse_stat(stat), Some(('S', 4711)));
    assert_eq!(parse_stat("17 (short) S 1 2"), None);
}

#[test]
fn this_process_is_running() {
    let id = ProcessId::of(std::process::id()).unwrap();
    assert!(id.is_running());
    assert!(id.start_ticks > 0);
}

#[test]
fn a_process_with_the_same_number_is_not_taken_for_ours() {
    let dir = tempfile::tempdir().unwrap();
    let mut sleeper = server("exec sleep 60", &dir.path().join("log"));
    let reused = ProcessId { start_ticks: sleeper.id().start_ticks - 1, ..sleeper.id() };
    assert!(!reused.is_running());
    assert!(!reused.signal(Signal::SIGKILL).unwrap());
    assert!(!reused.end(Signal::SIGKILL, Duration::ZERO).unwrap());
    assert_eq!(sleeper.exited().unwrap(), None);
    assert!(sleeper.id().is_running());
}

#[test]
fn an_ended_process_is_not_running_even_before_it_is_reaped() {
    let dir = tempfile::tempdir().unwrap();
    let server = server("exit 3", &dir.path().join("log"));
    assert!(wait_until(Duration::from_secs(60), || !server.id().is_running()));
}

#[test]
fn one_that_does_not_listen_is_killed_with_its_helpers() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let mut stubborn = server("trap '' TERM; sleep 60 & echo helper $!; wait; wait", &log);
    let mut helper = None;
    let read_helper = || {
        helper = fs::read_to_string(&log).ok()?.trim().strip_prefix("helper ")?.parse().ok();
        helper
    };
    let mut read_helper = read_helper;
    assert!(wait_until(Duration::from_secs(60), || read_helper().is_some()));
    let helper = ProcessId::of(helper.unwrap()).unwrap();
    let started = Instant::now();
    assert!(stubborn.id().end(Signal::SIGTERM, Duration::from_millis(200)).unwrap());
    assert!(started.elapsed() >= Duration::from_millis(200));
    assert!(wait_until(Duration::from_secs(60), || !helper.is_running()));
    assert!(stubborn.exited().unwrap().is_some());
}

#[test]
fn a_child_outlives_the_thread_that_started_it() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let started = std::thread::spawn(move || server("exec sleep 60", &log)).join().unwrap();
    // The kernel sends the signal when the starting thread ends, so it would have come before join returned.
    assert!(!wait_until(Duration::from_millis(300), || !started.id().is_running()));
}

#[test]
fn dropping_an_attached_server_ends_it_and_a_detached_one_stays() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let attached = server("exec sleep 60", &log);
    let id = attached.id();
    drop(attached);
    assert!(!id.is_running());

    let detached =
        Server::start(Launch { command: shell("exec sleep 60"), log, life: Life::Detached }).unwrap();
    let id = detached.id();
    drop(detached);
    assert!(id.is_running());
    assert!(id.end(Signal::SIGTERM, Duration::from_secs(10)).unwrap());
    assert!(!id.end(Signal::SIGTERM, Duration::from_secs(10)).unwrap());
}

#[test]
fn output_is_appended_to_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("logs/x.log");
    for _ in 0..2 {
        let mut server = server("echo out; echo err >&2", &log);
        assert!(wait_until(Duration::from_secs(60), || server.exited().unwrap().is_some()));
    }
    assert_eq!(fs::read_to_string(&log).unwrap(), "out\nerr\nout\nerr\n");
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let command = Command::new("/nonexistent/program");
    let launch = Launch { command, log: dir.path().join("log"), life: Life::Detached };
    let error = Server::start(launch).unwrap_err();
    assert!(format!("{error:#}").contains("starting /nonexistent/program"), "{error:#}");
}

#[test]
fn stop_wakes_a_frozen_process_first() {
    let dir = tempfile::tempdir().unwrap();
    let mut sleeper = server("exec sleep 60", &dir.path().join("log"));
    assert!(!sleeper.id().stands_still());
    sleeper.signal(Signal::SIGSTOP).unwrap();
    assert!(wait_until(Duration::from_secs(60), || sleeper.id().stands_still()));
    let started = Instant::now();
    sleeper.stop(Signal::SIGTERM, Duration::from_secs(20)).unwrap();
    assert!(started.elapsed() < Duration::from_secs(20));
    assert!(sleeper.exited().unwrap().is_some());
}
