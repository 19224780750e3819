"use strict";

/* What drf-spectacular's page has inline, where the Content-Security-Policy would not let it run. */
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
