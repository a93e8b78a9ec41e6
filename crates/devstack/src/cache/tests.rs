use super::*;

/// A small tarball with `package/part.so` in it, as npm packs them.
fn make_tarball(dir: &Path, content: &str) -> PathBuf {
    let source = dir.join("source");
    fs::create_dir_all(source.join("package")).unwrap();
    fs::write(source.join("package/part.so"), content).unwrap();
    fs::write(source.join("package/README"), "not wanted").unwrap();
    let tarball = dir.join("made.tgz");
    let status =
        Command::new("tar").arg("-czf").arg(&tarball).arg("-C").arg(&source).arg("package").status().unwrap();
    assert!(status.success());
    tarball
}

fn install(root: &Path, tarball: &Path, expected: &str, downloads: &mut u32) -> Result<PathBuf> {
    part(root, "part", "1", |dir| {
        let fetched = super::tarball(&root.join("downloads"), "made.tgz", expected, |into| {
            *downloads += 1;
            fs::copy(tarball, into.join("made.tgz"))?;
            Ok(())
        })?;
        unpack(&fetched, dir, &["package/part.so"])
    })
}

#[test]
fn the_cache_follows_the_environment() {
    let path = |text: &str| Some(PathBuf::from(text));
    assert_eq!(root_from(path("/x"), path("/h")).unwrap(), Path::new("/x/usage-collector"));
    assert_eq!(root_from(None, path("/h")).unwrap(), Path::new("/h/.cache/usage-collector"));
    // The specification of XDG says that a relative path is to be ignored.
    assert_eq!(root_from(path("x"), path("/h")).unwrap(), Path::new("/h/.cache/usage-collector"));
    assert!(root_from(None, None).is_err());
}

#[test]
fn a_part_is_installed_once() {
    let dir = tempfile::tempdir().unwrap();
    let tarball = make_tarball(dir.path(), "library");
    let hash = sha256(&tarball, None).unwrap();
    let root = dir.path().join("cache");
    let mut downloads = 0;
    for _ in 0..2 {
        let installed = install(&root, &tarball, &hash, &mut downloads).unwrap();
        assert_eq!(fs::read_to_string(installed.join("part.so")).unwrap(), "library");
        assert!(!installed.join("README").exists());
    }
    assert_eq!(downloads, 1);
}

#[test]
fn a_broken_download_leaves_nothing_and_the_next_run_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let whole = make_tarball(dir.path(), "library");
    let hash = sha256(&whole, None).unwrap();
    let broken = dir.path().join("broken.tgz");
    let bytes = fs::read(&whole).unwrap();
    fs::write(&broken, &bytes[..bytes.len() / 2]).unwrap();
    let root = dir.path().join("cache");
    let mut downloads = 0;

    let error = install(&root, &broken, &hash, &mut downloads).unwrap_err();
    assert!(format!("{error:#}").contains("not what was pinned"), "{error:#}");
    assert!(!root.join("part/1").exists());
    assert!(!root.join("downloads/made.tgz").exists());

    install(&root, &whole, &hash, &mut downloads).unwrap();
    assert_eq!(downloads, 2);
}

#[test]
fn a_half_file_that_was_left_is_downloaded_again() {
    let dir = tempfile::tempdir().unwrap();
    let whole = make_tarball(dir.path(), "library");
    let hash = sha256(&whole, None).unwrap();
    let root = dir.path().join("cache");
    fs::create_dir_all(root.join("downloads")).unwrap();
    fs::write(root.join("downloads/made.tgz"), "half").unwrap();
    let mut downloads = 0;
    install(&root, &whole, &hash, &mut downloads).unwrap();
    assert_eq!(downloads, 1);
}

#[test]
fn a_whole_file_that_was_left_is_not_downloaded_again() {
    let dir = tempfile::tempdir().unwrap();
    let whole = make_tarball(dir.path(), "library");
    let hash = sha256(&whole, None).unwrap();
    let root = dir.path().join("cache");
    fs::create_dir_all(root.join("downloads")).unwrap();
    fs::copy(&whole, root.join("downloads/made.tgz")).unwrap();
    let mut downloads = 0;
    install(&root, &whole, &hash, &mut downloads).unwrap();
    assert_eq!(downloads, 0);
}

#[test]
fn an_unpacking_that_was_cut_off_is_started_over() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let cut_off = part(root, "part", "1", |dir| {
        fs::write(dir.join("half"), "x")?;
        bail!("killed here")
    });
    assert!(format!("{:#}", cut_off.unwrap_err()).contains("killed here"));
    assert!(!root.join("part/1").exists());

    let installed = part(root, "part", "1", |dir| Ok(fs::write(dir.join("whole"), "x")?)).unwrap();
    assert!(installed.join("whole").exists());
    assert!(!installed.join("half").exists());
}

#[test]
fn processes_that_install_at_once_do_it_once() {
    let dir = tempfile::tempdir().unwrap();
    let fills = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                part(dir.path(), "part", "1", |dir| {
                    fills.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    Ok(fs::write(dir.join("x"), "x")?)
                })
                .unwrap()
            });
        }
    });
    assert_eq!(fills.into_inner(), 1);
}

#[test]
fn a_failing_program_shows_what_it_said() {
    let mut command = Command::new("sh");
    command.args(["-c", "echo first; echo second >&2; exit 4"]);
    let error = run_quietly(command).unwrap_err().to_string();
    assert!(
        error.contains("first") && error.contains("second") && error.contains("exit status: 4"),
        "{error}"
    );
}
