"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const say = (text) => { byId("said").textContent = text; };
  document.documentElement.classList.add("scripted");
  for (const each of document.querySelectorAll(".with-script")) each.hidden = false;
  for (const each of document.querySelectorAll(".without-script")) each.hidden = true;

  // Times, in the user's own zone and language.
  for (const each of document.querySelectorAll("time")) {
    const when = new Date(each.dateTime);
    const today = when.toDateString() === new Date().toDateString();
    each.title = when.toLocaleString();
    each.textContent = today
      ? when.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" })
      : when.toLocaleDateString([], { year: "numeric", month: "short", day: "numeric" });
  }

  // Buttons that copy. Without a secure context only the old way is there.
  const copy = async (text) => {
    if (navigator.clipboard) {
      try { await navigator.clipboard.writeText(text); return true; } catch { /* the old way */ }
    }
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const done = await copy(button.dataset.copy);
      say(done ? "Copied" : "It cannot be copied here");
      const label = button.firstChild;
      label.textContent = done ? "Copied" : "Failed";
      setTimeout(() => { label.textContent = "Copy"; }, 1500);
      button.focus();
    });
  }
  for (const input of document.querySelectorAll("input[readonly]")) {
    input.addEventListener("focus", () => input.select());
  }
  // A page that the browser has kept may be of somebody who has signed out since.
  addEventListener("pageshow", (event) => {
    if (!event.persisted || !document.querySelector(".sign-out")) return;
    document.documentElement.hidden = true;
    location.reload();
  });
  const stored = byId("stored");
  if (stored) stored.focus();

  const form = byId("upload");
  if (!form) return;
  const drop = byId("drop"), problem = byId("problem"), progress = byId("progress"), bar = byId("bar");
  const limit = Number(form.dataset.limit), together = 100;
  let task = null;  // what is under way: `request` sends, before it is there files are collected

  const size = (bytes) => {
    const units = ["bytes", "KB", "MB", "GB", "TB"];
    let unit = 0;
    while (bytes >= 999.5 && unit < units.length - 1) { bytes /= 1000; unit += 1; }
    return `${unit && bytes < 9.95 ? bytes.toFixed(1) : Math.round(bytes)} ${units[unit]}`;
  };
  const duration = (seconds) => {
    if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
    return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
  };
  const show = (uploading) => { progress.hidden = !uploading; drop.hidden = uploading; };
  // Names, written out as by `visible` of wording.py.
  const unseen = /(?![\u200c\u200d\ufe00-\ufe0f\u{e0100}-\u{e01ef}])[\p{Cc}\p{Cs}\p{DI}\u2028\u2029\ufff9-\ufffb]/gu;
  const named = (text) => {
    const element = document.createElement("bdi");
    element.textContent = text.replace(unseen, (char) => {
      const code = char.codePointAt(0), digits = code < 0x100 ? 2 : code < 0x10000 ? 4 : 8;
      return (digits === 2 ? "\\x" : digits === 4 ? "\\u" : "\\U") + code.toString(16).padStart(digits, "0");
    });
    return element;
  };
  const count = (files) => `${files.toLocaleString()} file${files === 1 ? "" : "s"}`;
  const fail = (...parts) => {
    task = null;
    show(false);
    problem.replaceChildren(...parts);
    problem.hidden = false;
  };
  const gaveUp = (what) => fail(`It was not stored: ${what}. The command can do it: ${form.dataset.command}`);
  const begin = (...what) => {
    task = { isCancelled: false, request: null };
    problem.hidden = true;
    bar.removeAttribute("value");
    byId("progress-what").replaceChildren(...what);
    byId("progress-text").textContent = "";
    show(true);
    byId("cancel").focus();
    return task;
  };

  // Media types by extension, as src/skymount/wire/media_types.py has them: the browser's depend on the machine.
  const types = fetch(form.dataset.types).then((answer) => answer.text()).then((text) => new Map(
    text.split("\n").filter((line) => line && !line.startsWith("#")).flatMap((line) => {
      const [type, ...extensions] = line.split(" ");
      return extensions.map((extension) => [extension, type]);
    })));
  const typeOf = (path, known) => {
    const name = path.slice(path.lastIndexOf("/") + 1), dot = name.lastIndexOf(".");
    return dot > 0 ? known.get(name.slice(dot + 1).toLowerCase()) || "" : "";
  };

  // What two of the files would be in one upload, if they cannot both be in it. files: [path, File] of each.
  const clash = (files) => {
    const seen = new Map(), folders = new Set();
    const one = (file) => `one of ${size(file.size)}, changed ${new Date(file.lastModified).toLocaleString()}`;
    for (const [path, file] of files) {
      if (seen.has(path)) return ["Two files have the name ", named(path), `: ${one(seen.get(path))}, and ${one(file)}.`];
      seen.set(path, file);
      for (let end = path.indexOf("/"); end > 0; end = path.indexOf("/", end + 1)) folders.add(path.slice(0, end));
    }
    for (const [path] of files) if (folders.has(path)) return ["A file and a folder have the name ", named(path), "."];
    return null;
  };
  const upload = (files) => {
    if (!files.length) { fail("There are no files in it."); return; }
    const total = files.reduce((sum, [, file]) => sum + file.size, 0), same = clash(files);
    if (same) { fail(...same, " Nothing was sent: rename one of them, or upload one after the other."); return; }
    if (total > limit) { fail(`This is too large: ${size(total)}. At most ${size(limit)} can be uploaded at once.`); return; }
    const current = begin(files.length === 1 ? named(files[0][0]) : count(files.length), `, ${size(total)}`);
    byId("progress-text").textContent = "The browser opens what it sends …";
    const started = performance.now(), request = new XMLHttpRequest();
    current.request = request;
    request.open("POST", form.action);
    request.responseType = "text";
    request.setRequestHeader("Accept", "application/json");
    request.setRequestHeader("Skymount-Token", form.elements.token.value);
    request.upload.addEventListener("progress", (event) => {
      if (!event.lengthComputable) return;
      bar.value = event.loaded / event.total;
      const seconds = (performance.now() - started) / 1000, speed = event.loaded / seconds;
      const left = (event.total - event.loaded) / speed;
      byId("progress-text").textContent = event.loaded >= event.total
        ? "All is sent, it is being stored …"
        : `${Math.floor(100 * bar.value)} %, ${size(speed)}/s` + (seconds > 1 ? `, ${duration(left)} left` : "");
    });
    request.addEventListener("load", () => {
      let answer = {};
      try { answer = JSON.parse(request.responseText) || {}; } catch { /* not of the portal */ }
      if (request.status === 200 && answer.page) { task = null; location.assign(answer.page); return; }
      if (answer.message) fail("It was not stored: ", named(answer.message));
      else if (request.status !== 413) fail(`It was not stored: a proxy before the portal answered ${request.status}.`);
      else fail(`It was not stored: a proxy before the portal does not take ${size(total)} at once. Its limit can be raised there (in nginx it is client_max_body_size); the portal takes up to ${size(limit)}.`);
    });
    request.addEventListener("error", () => gaveUp("the connection broke, or the browser could not read a file"));
    request.addEventListener("abort", () => {
      if (!current.isCancelled) gaveUp(`the browser could not send ${count(files.length)} of ${size(total)} at once`);
    });
    types.then((known) => setTimeout(() => {  // once this is shown: with many files it takes seconds
      if (current.isCancelled) return;
      try { send(request, files, known); } catch (error) { gaveUp(`the browser could not read the files (${error.message})`); }
    }, 50), () => fail("It was not stored: the portal does not answer. Load this page again."));
  };
  // FormData writes a quote of a name as %22, and so cannot tell it from these three characters.
  const send = (request, files, known) => {
    const random = crypto.getRandomValues(new Uint32Array(4)), boundary = `skymount-${random.join("-")}`;
    const parts = files.flatMap(([path, file], at) => {
      const name = encodeURIComponent(path.replace(/[\ud800-\udfff]/gu, "\ufffd"))
        .replace(/['()*]/g, (char) => `%${char.charCodeAt(0).toString(16)}`);
      const type = typeOf(path, known);
      const header = `${at ? "\r\n" : ""}--${boundary}\r\nContent-Disposition: form-data; name="files[]"; filename*=UTF-8''${name}\r\n`;
      return [header + (type ? `Content-Type: ${type}\r\n\r\n` : "\r\n"), file];
    });
    request.setRequestHeader("Content-Type", `multipart/form-data; boundary=${boundary}`);
    request.send(new Blob([...parts, `\r\n--${boundary}--\r\n`]));
  };
  byId("cancel").addEventListener("click", () => {
    if (!task) return;
    task.isCancelled = true;
    if (task.request) task.request.abort();
    fail("The upload was cancelled. Nothing was stored.");
    byId("files").focus();
  });
  addEventListener("pageshow", () => { task = null; show(false); form.reset(); });
  addEventListener("beforeunload", (event) => { if (task) event.preventDefault(); });

  for (const input of [byId("files"), byId("folder")]) {
    input.addEventListener("change", () => {
      if (!task) upload([...input.files].map((file) => [file.webkitRelativePath || file.name, file]));
      input.value = "";
    });
  }
  form.addEventListener("submit", (event) => event.preventDefault());

  // Files and folders that are dropped anywhere on the page.
  const readAll = (entry) => new Promise((resolve, reject) => {
    const reader = entry.createReader(), found = [];
    const next = () => reader.readEntries((some) => {
      if (!some.length) { resolve(found); return; }
      found.push(...some);
      next();
    }, reject);
    next();
  });
  const fileOf = (entry) => new Promise((resolve, reject) => entry.file((file) => resolve([pathOf(entry), file]), reject));
  const pathOf = (entry) => entry.fullPath.replace(/^\//, "");
  const collect = async (entries, files, current) => {
    for (let at = 0; at < entries.length && !current.isCancelled; at += together) {
      files.push(...await Promise.all(entries.slice(at, at + together).filter((each) => each.isFile).map(fileOf)));
      byId("progress-text").textContent = `${count(files.length)} found`;
    }
    for (const each of entries) if (each.isDirectory && !current.isCancelled) await collect(await readAll(each), files, current);
  };
  let depth = 0;
  const hasFiles = (event) => event.dataTransfer && [...event.dataTransfer.types].includes("Files");
  const over = (is) => { if (!is) depth = 0; drop.classList.toggle("over", is); };
  addEventListener("dragenter", (event) => { if (hasFiles(event)) { event.preventDefault(); depth += 1; over(true); } });
  addEventListener("dragleave", () => { depth -= 1; if (depth <= 0) over(false); });
  addEventListener("dragover", (event) => { if (hasFiles(event)) event.preventDefault(); });
  addEventListener("drop", async (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    over(false);
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry && item.webkitGetAsEntry()).filter(Boolean);
    const plain = [...event.dataTransfer.files].map((file) => [file.name, file]), files = [];
    if (task) return;
    if (!entries.length) { upload(plain); return; }
    const current = begin("The browser looks for the files …");
    try {
      await collect(entries, files, current);
      if (!current.isCancelled) upload(files);
    } catch (error) {
      if (!current.isCancelled) gaveUp(`the browser could not read the files, after ${count(files.length)} (${error.message})`);
    }
  });
})();
