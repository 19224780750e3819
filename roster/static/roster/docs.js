"use strict";

/* The inline script of drf-spectacular's page. The Content-Security-Policy does not allow it inline. */
(() => {
  const page = document.getElementById("swagger-ui");

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
