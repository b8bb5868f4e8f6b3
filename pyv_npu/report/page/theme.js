"use strict";
/* Light, dark, or as the system has it: the choice is kept for all reports of this folder's origin. */
const theme = {
  choices: ["", "light", "dark"],
  names: { "": "theme: system", light: "theme: light", dark: "theme: dark" },
  now: "",
  system: matchMedia("(prefers-color-scheme: dark)"),
  changed: [],
  set(choice) {
    theme.now = theme.choices.includes(choice) ? choice : "";
    document.documentElement.dataset.theme = theme.now || (theme.system.matches ? "dark" : "light");
    try { localStorage.setItem("pyv-npu-theme", theme.now); } catch { /* a browser may keep nothing for files */ }
    const button = document.getElementById("theme");
    if (button) button.textContent = theme.names[theme.now];
    theme.changed.forEach((act) => act());
  },
};
try { theme.set(localStorage.getItem("pyv-npu-theme") || ""); } catch { theme.set(""); }
theme.system.addEventListener("change", () => theme.set(theme.now));
document.addEventListener("DOMContentLoaded", () => {
  document.getElementById("theme").textContent = theme.names[theme.now];
  document.getElementById("theme").onclick = () =>
    theme.set(theme.choices[(theme.choices.indexOf(theme.now) + 1) % theme.choices.length]);
  const links = [...document.querySelectorAll("nav a")];
  const seen = new IntersectionObserver(() => {
    const line = Math.min(180, innerHeight / 3);
    const here = links.filter((link) => document.getElementById(link.hash.slice(1)).getBoundingClientRect().top < line).pop();
    links.forEach((link) => link.classList.toggle("here", link === here));
  }, { rootMargin: "-64px 0px -60% 0px", threshold: [0, 0.01, 0.25, 0.5, 0.75, 1] });
  document.querySelectorAll("section").forEach((section) => seen.observe(section));
});
