"""The guard's interface as tables: shapes of bodies, values of answers, and the OpenAPI document made of both."""
