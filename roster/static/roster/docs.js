"use strict";

/* The inline script of drf-spectacular's page. The Content-Security-Policy does not allow it inline. */
(() => {
  const page = document.getElementById("swagger-ui");
  const systemIsDark = matchMedia("(prefers-color-scheme: dark)");

  /* The theme that the user chose in the admin. */
  function showTheme() {
    const theme = localStorage.getItem("theme") ?? "auto";
    document.documentElement.classList.toggle("dark-mode", theme === "dark" || (theme === "auto" && systemIsDark.matches));
  }

  showTheme();
  systemIsDark.addEventListener("change", showTheme);

  SwaggerUIBundle({
    url: page.dataset.schema,
    domNode: page,
    presets: [SwaggerUIBundle.presets.apis],
    layout: "BaseLayout",
    deepLinking: true,
    requestInterceptor: (request) => {
      if ((request.method ?? "GET") !== "GET") request.headers[page.dataset.csrfHeader] = page.dataset.csrfToken;
      return request;
    },
  });
})();
