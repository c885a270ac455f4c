// Makes the page live and the order form quick. Without it everything still works, by forms and links.
"use strict";
(() => {
  // The only text that becomes HTML comes from our own server, which has escaped it.
  const policy = window.trustedTypes
    ? window.trustedTypes.createPolicy("gpuclaim", { createHTML: (text) => text })
    : { createHTML: (text) => text };
  const main = document.getElementById("main");
  const announce = document.getElementById("announce");
  const liveness = document.getElementById("liveness");
  const form = document.getElementById("order");
  document.documentElement.classList.add("script");

  const sayings = (root) =>
    new Map([...root.querySelectorAll("[data-key]")].map((each) => [each.dataset.key, each.dataset.say]));

  // Puts new content in, and leaves the visitor where they were: the focus, what is open, what is chosen.
  function replace(part, html) {
    const before = sayings(part);
    const active = part.contains(document.activeElement) ? document.activeElement.id : "";
    const open = [...part.querySelectorAll("details[open]")].map((each) => each.id);
    const chosen = [...part.querySelectorAll("input:checked")].map((each) => each.id);
    part.innerHTML = policy.createHTML(html);
    for (const id of open) document.getElementById(id)?.setAttribute("open", "");
    for (const id of chosen) {
      const input = document.getElementById(id);
      if (input) input.checked = true;
    }
    if (active) document.getElementById(active)?.focus({ preventScroll: true });
    const said = [];
    for (const [key, words] of sayings(part)) if (before.get(key) !== words) said.push(words);
    if (said.length) announce.textContent = said.slice(0, 5).join("; ");
  }

  function follow() {
    let source = null;
    const show = (words) => {
      liveness.textContent = words;
    };
    const start = () => {
      if (source || document.hidden) return;
      source = new EventSource(location.href);
      source.addEventListener("open", () => show(liveness.dataset.liveWords));
      source.addEventListener("part", (event) => {
        const { id, html } = JSON.parse(event.data);
        const part = document.getElementById(id);
        if (!part) return;
        replace(part, html);
        if (form && part.id !== "part-budget") check();
      });
      source.addEventListener("end", () => {
        source.close();
        location.reload();
      });
      source.addEventListener("error", () => {
        show(liveness.dataset.awayWords);
        // The server has said no, and the browser does not try again by itself.
        if (source.readyState === EventSource.CLOSED) {
          source = null;
          setTimeout(start, 5000);
        }
      });
    };
    const stop = () => {
      source?.close();
      source = null;
    };
    // A browser has few connections to one server: a page that nobody sees gives its own back.
    document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
    window.addEventListener("pagehide", stop);
    // A form leads on; that it ends this session must not load this page anew before.
    document.addEventListener("submit", stop);
    window.addEventListener("pageshow", start);
    start();
  }

  let waiting = 0;
  let asking = null;
  let asked = "";

  function check() {
    clearTimeout(waiting);
    waiting = setTimeout(ask, 250);
  }

  // Whether the order would fit: a dry run by the server, with the visitor's rights.
  async function ask() {
    if (!form.checkValidity() || form.querySelector("button[value=order]").disabled) return;
    asking?.abort();
    asking = new AbortController();
    try {
      const answer = await fetch(form.dataset.check, {
        method: "POST",
        body: new URLSearchParams(new FormData(form)),
        signal: asking.signal,
      });
      if (answer.status === 401) location.reload();
      if (!answer.ok) return;
      const html = await answer.text();
      // The same words again would be read out again.
      if (html !== asked) document.getElementById("verdict").innerHTML = policy.createHTML(html);
      asked = html;
    } catch (error) {
      if (error.name !== "AbortError") liveness.textContent = liveness.dataset.awayWords;
    }
  }

  if (form) {
    form.addEventListener("input", check);
    // A second click on the way is no second order.
    let ordering = false;
    form.addEventListener("submit", (event) => {
      if (ordering) event.preventDefault();
      ordering = true;
    });
    window.addEventListener("pageshow", () => {
      ordering = false;
    });
    if (!document.querySelector("#verdict .fits-not")) check();
  }
  document.getElementById("context")?.addEventListener("change", (event) => event.target.form.requestSubmit());
  if (main && "live" in main.dataset) follow();
})();
