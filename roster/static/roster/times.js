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

  /* What is past is rounded down, and what is to come is rounded up, as the tags do. */
  function durationText(seconds, rounded) {
    const whole = Math.max(0, rounded(seconds));
    const [, unit, word] = STEPS.find(([limit]) => whole < limit);
    return `${rounded(whole / unit)} ${word}`;
  }

  function updateTimes() {
    if (document.hidden) return;
    for (const time of document.querySelectorAll("time[data-ago], time[data-until]")) {
      const age = (Date.now() - Date.parse(time.dateTime)) / 1000;
      const text = time.hasAttribute("data-until") ? durationText(-age, Math.ceil) : durationText(age, Math.floor);
      if (time.textContent !== text) time.textContent = text;
    }
  }

  document.addEventListener("live:updated", updateTimes);
  document.addEventListener("visibilitychange", updateTimes);
  setInterval(updateTimes, 1000);
  updateTimes();
})();
