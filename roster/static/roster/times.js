"use strict";

/* <time datetime="..." data-ago> shows how long ago that is (data-until: how long until then), and is updated. The exact
   time is in its title. The tags `ago` and `until` of roster/templatetags/hall.py create it. */
(() => {
  const STEPS = [
    [60, 1, "s"],
    [3600, 60, "min"],
    [48 * 3600, 3600, "h"],
    [Infinity, 86400, "days"],
  ];

  function inWords(seconds) {
    const [, unit, word] = STEPS.find(([limit]) => seconds < limit);
    return `${Math.floor(seconds / unit)} ${word}`;
  }

  function tell() {
    if (document.hidden) return;
    for (const time of document.querySelectorAll("time[data-ago], time[data-until]")) {
      const passed = (Date.now() - Date.parse(time.dateTime)) / 1000;
      const text = inWords(Math.max(0, time.hasAttribute("data-until") ? -passed : passed));
      if (time.textContent !== text) time.textContent = text;
    }
  }

  document.addEventListener("live:updated", tell);
  document.addEventListener("visibilitychange", tell);
  setInterval(tell, 1000);
  tell();
})();
