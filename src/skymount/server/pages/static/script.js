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
  const stored = byId("stored");
  if (stored) stored.focus();

  const form = byId("upload");
  if (!form) return;
  const drop = byId("drop"), problem = byId("problem"), progress = byId("progress"), bar = byId("bar");
  const limit = Number(form.dataset.limit);
  let request = null;

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
  const fail = (text) => {
    request = null;
    show(false);
    problem.textContent = text;
    problem.hidden = false;
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

  // files: [path, File] of each.
  const upload = (files) => {
    if (request || !files.length) return;
    const total = files.reduce((sum, [, file]) => sum + file.size, 0);
    if (total > limit) { fail(`This is too large: ${size(total)}. At most ${size(limit)} can be uploaded at once.`); return; }
    problem.hidden = true;
    bar.value = 0;
    const what = files.length === 1 ? files[0][0] : `${files.length.toLocaleString()} files`;
    byId("progress-what").textContent = `${what}, ${size(total)}`;
    byId("progress-text").textContent = "";
    show(true);
    byId("cancel").focus();
    const started = performance.now();
    request = new XMLHttpRequest();
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
      try { answer = JSON.parse(request.responseText); } catch { /* below */ }
      if (request.status === 200 && answer.page) { location.assign(answer.page); return; }
      fail(answer.message ? `It was not stored: ${answer.message}` : `It was not stored: the portal answered ${request.status}.`);
    });
    request.addEventListener("error", () => fail("It was not stored: the connection to the portal broke, or a file cannot be read."));
    request.addEventListener("abort", () => { fail("The upload was cancelled. Nothing was stored."); byId("files").focus(); });
    types.then((known) => {
      if (request && request.readyState === XMLHttpRequest.OPENED) send(files, known);
    }, () => fail("It was not stored: the portal does not answer. Load this page again."));
  };
  // FormData writes a quote of a name as %22, and so cannot tell it from these three characters.
  const send = (files, known) => {
    const random = crypto.getRandomValues(new Uint32Array(4)), boundary = `skymount-${random.join("-")}`;
    const parts = files.flatMap(([path, file]) => {
      const name = encodeURIComponent(path.replace(/[\ud800-\udfff]/gu, "\ufffd"))
        .replace(/['()*]/g, (char) => `%${char.charCodeAt(0).toString(16)}`);
      const type = typeOf(path, known);
      const header = `--${boundary}\r\nContent-Disposition: form-data; name="files[]"; filename*=UTF-8''${name}\r\n`;
      return [header + (type ? `Content-Type: ${type}\r\n\r\n` : "\r\n"), file, "\r\n"];
    });
    request.setRequestHeader("Content-Type", `multipart/form-data; boundary=${boundary}`);
    request.send(new Blob([...parts, `--${boundary}--\r\n`]));
  };
  byId("cancel").addEventListener("click", () => { if (request) request.abort(); });
  addEventListener("pageshow", () => { request = null; show(false); form.reset(); });
  addEventListener("beforeunload", (event) => {
    if (request && request.readyState !== XMLHttpRequest.DONE) event.preventDefault();
  });

  for (const input of [byId("files"), byId("folder")]) {
    input.addEventListener("change", () => {
      upload([...input.files].map((file) => [file.webkitRelativePath || file.name, file]));
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
  const fileOf = (entry) => new Promise((resolve, reject) => entry.file(resolve, reject));
  const collect = async (entry, files) => {
    const path = entry.fullPath.replace(/^\//, "");
    if (entry.isFile) { files.push([path, await fileOf(entry)]); return; }
    for (const each of await readAll(entry)) await collect(each, files);
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
    const plain = [...event.dataTransfer.files];
    const files = [];
    try {
      for (const entry of entries) await collect(entry, files);
    } catch (error) {
      fail(`The files cannot be read: ${error.message}`);
      return;
    }
    upload(entries.length ? files : plain.map((file) => [file.name, file]));
    if (!files.length && !plain.length) fail("There are no files in it.");
  });
})();
