//! Runs a script with bash or with the interpreter in its first line. Params become environment variables; the script's
//! text stays unchanged. The agent's own environment is hidden from it. Secrets are passed as files, because other
//! users can read an environment. `MUSTER_SECRET_<NAME>_FILE` holds a secret, `MUSTER_PARAM_<NAME>_FILE` a param that
//! contains secrets.

use std::{collections::BTreeMap, ffi::OsString, fs, io, os::unix::fs::OpenOptionsExt, path::PathBuf};

use muster_proto::{convert::RESULT_BYTES_MAX, script::interpreter};
use nix::unistd::{User, geteuid};

use super::{Outcome, ProgramSpec, Refused};
use crate::attempt::{AttemptDir, Request, inputs::Inputs};

/// Search path for programs, for us and for the script.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Maximum length of `NAME=value` in the kernel (MAX_ARG_STRLEN, with its NUL).
const ENVIRONMENT_BYTES_MAX: usize = 128 * 1024 - 1;
/// Maximum size of all variables: a quarter of the usual stack limit, as the kernel counts it.
const ENVIRONMENT_TOTAL_BYTES_MAX: usize = 1536 * 1024;
const RESULT_FILE: &str = "result.json";

/// Writes the script and returns its command. `secret_params` are the params with the values of secrets in them.
pub(super) fn prepare(
    request: &Request,
    inputs: &Inputs,
    secret_params: &BTreeMap<String, String>,
    dir: &AttemptDir,
) -> Result<ProgramSpec, Refused> {
    let script = request.params.get("script").ok_or(Refused::Missing("script"))?;
    let path = dir.file("script");
    fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)
        .and_then(|mut file| io::Write::write_all(&mut file, script.as_bytes()))
        .map_err(|source| Refused::Write { path: path.clone(), source })?;
    let named = interpreter(script).map_err(|error| Refused::param("script", error.to_string()))?;
    let program = named.map_or_else(bash, |named| named.program.into());
    let argument = named.and_then(|named| named.argument).map(OsString::from);
    Ok(ProgramSpec {
        program,
        args: argument.into_iter().chain([path.into()]).collect(),
        environment: environment(request, files(inputs, secret_params)?, dir)?,
        directory: dir.file("work"),
    })
}

/// `/bin/bash`, or the first on the path. If bash is missing, executing it reports the error.
fn bash() -> PathBuf {
    let usual = PathBuf::from("/bin/bash");
    if usual.exists() {
        return usual;
    }
    PATH.split(':').map(|dir| PathBuf::from(dir).join("bash")).find(|path| path.exists()).unwrap_or(usual)
}

/// Variables that name files: of the secrets, and of the params that contain them.
fn files(inputs: &Inputs, secret_params: &BTreeMap<String, String>) -> Result<BTreeMap<String, OsString>, Refused> {
    let mut files: BTreeMap<String, OsString> = inputs
        .secret_files()
        .map(|(name, path)| {
            let name = name.to_ascii_uppercase().replace('-', "_");
            (format!("MUSTER_SECRET_{name}_FILE"), path.into())
        })
        .collect();
    for (name, value) in secret_params {
        let path = inputs
            .write_param(name, value)
            .map_err(|source| Refused::Write { path: PathBuf::from(format!("the file of param {name}")), source })?;
        files.insert(format!("MUSTER_PARAM_{}_FILE", name.to_ascii_uppercase()), path.into());
    }
    Ok(files)
}

/// Base environment of all our programs, independent of the agent's own.
pub(super) fn surroundings() -> BTreeMap<String, OsString> {
    let home = User::from_uid(geteuid()).ok().flatten().map_or_else(|| PathBuf::from("/"), |user| user.dir);
    [("PATH", OsString::from(PATH)), ("HOME", home.into()), ("LANG", "C.UTF-8".into())]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
}

fn environment(
    request: &Request,
    files: BTreeMap<String, OsString>,
    dir: &AttemptDir,
) -> Result<BTreeMap<String, OsString>, Refused> {
    let mut environment = surroundings();
    let told: [(&str, OsString); 8] = [
        ("MUSTER_MACHINE", request.machine.as_str().into()),
        ("MUSTER_CLUSTER", request.cluster.as_str().into()),
        ("MUSTER_ITEM", request.key.item.as_str().into()),
        ("MUSTER_GENERATION", request.key.generation.to_string().into()),
        ("MUSTER_ATTEMPT", request.key.attempt.to_string().into()),
        ("MUSTER_PHASE", request.phase.as_str().into()),
        ("MUSTER_VERSION", request.version.as_str().into()),
        ("MUSTER_RESULT_FILE", dir.file(RESULT_FILE).into()),
    ];
    environment.extend(told.map(|(name, value)| (name.to_owned(), value)));
    environment.extend(files);
    for (name, value) in request.params.iter().filter(|(name, _)| *name != "script") {
        let variable = format!("MUSTER_PARAM_{}", name.to_ascii_uppercase());
        if variable.len() + 1 + value.len() > ENVIRONMENT_BYTES_MAX {
            let problem =
                format!("{} bytes; a script takes at most 128 KiB per param: put it into a file", value.len());
            return Err(Refused::param(name, problem));
        }
        if environment.insert(variable, value.into()).is_some() {
            let problem = "its variable would be the one of another param, or of its file; call it otherwise";
            return Err(Refused::param(name, problem));
        }
    }
    let total: usize = environment.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    if total > ENVIRONMENT_TOTAL_BYTES_MAX {
        return Err(Refused::param("script", format!("its params have {total} bytes together; at most 1.5 MiB")));
    }
    Ok(environment)
}

/// Removes the script's result file, which may contain a secret; the outcome has the part that is kept.
pub(super) fn forget_result(dir: &AttemptDir) {
    // It may be missing. If the removal fails, the attempt's whole directory is removed later.
    let _ = fs::remove_file(dir.file(RESULT_FILE));
}

/// Adds the script's result from `$MUSTER_RESULT_FILE`. An invalid result is only reported.
pub(super) fn with_result(mut outcome: Outcome, dir: &AttemptDir) -> Outcome {
    match result(dir) {
        Ok(json) => outcome.result_json = json,
        Err(problem) => outcome.message += &format!("; its result was ignored: {problem}"),
    }
    outcome
}

fn result(dir: &AttemptDir) -> Result<Option<String>, String> {
    let path = dir.file(RESULT_FILE);
    let bytes = match fs::metadata(&path) {
        Ok(file) if !file.is_file() => return Err("not a file".to_owned()),
        Ok(file) if file.len() > RESULT_BYTES_MAX as u64 => {
            return Err(format!("{} bytes, at most {RESULT_BYTES_MAX}", file.len()));
        }
        Ok(_) => fs::read(&path).map_err(|error| error.to_string())?,
        Err(_) => return Ok(None),
    };
    let text = String::from_utf8(bytes).map_err(|_| "not UTF-8".to_owned())?;
    serde_json::from_str::<serde::de::IgnoredAny>(&text).map_err(|error| format!("not JSON: {error}"))?;
    Ok(Some(text))
}
