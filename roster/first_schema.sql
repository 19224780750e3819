-- has: admin 0001_initial
-- has: admin 0002_logentry_remove_auto_add
-- has: admin 0003_logentry_add_action_flag_choices
-- has: auth 0001_initial
-- has: auth 0002_alter_permission_name_max_length
-- has: auth 0003_alter_user_email_max_length
-- has: auth 0004_alter_user_username_opts
-- has: auth 0005_alter_user_last_login_null
-- has: auth 0006_require_contenttypes_0002
-- has: auth 0007_alter_validators_add_error_messages
-- has: auth 0008_alter_user_username_max_length
-- has: auth 0009_alter_user_last_name_max_length
-- has: auth 0010_alter_group_name_max_length
-- has: auth 0011_update_proxy_permissions
-- has: auth 0012_alter_user_first_name_max_length
-- has: contenttypes 0001_initial
-- has: contenttypes 0002_remove_content_type_name
-- has: oauth2_provider 0001_initial
-- has: oauth2_provider 0002_auto_20190406_1805
-- has: oauth2_provider 0003_auto_20201211_1314
-- has: oauth2_provider 0004_auto_20200902_2022
-- has: oauth2_provider 0005_auto_20211222_2352
-- has: oauth2_provider 0006_alter_application_client_secret
-- has: oauth2_provider 0007_application_post_logout_redirect_uris
-- has: oauth2_provider 0008_alter_accesstoken_token
-- has: oauth2_provider 0009_add_hash_client_secret
-- has: oauth2_provider 0010_application_allowed_origins
-- has: oauth2_provider 0011_refreshtoken_token_family
-- has: oauth2_provider 0012_add_token_checksum
-- has: oauth2_provider 0013_alter_application_authorization_grant_type_device
-- has: oauth2_provider 0014_alter_help_text
-- has: oauth2_provider 0015_refreshtoken_token_checksum
-- has: oauth2_provider 0016_alter_devicegrant_scope
-- has: oauth2_provider 0017_application_dcr_created
-- has: oauth2_provider 0018_resource_indicators
-- has: oauth2_provider 0019_application_registration_source
-- has: oauth2_provider 0020_cimd_application_fields
-- has: oauth2_provider 0021_translatable_field_labels
-- has: oauth2_provider 0022_refreshtoken_token_family_index
-- has: roster 0001_initial
-- has: roster 0002_what_belongs_to_a_token
-- has: roster 0003_who_made_old_sessions
-- has: roster 0004_which_process_holds_the_lease
-- has: roster 0005_no_answer_since
-- has: roster 0006_source_of_a_call
-- has: roster 0007_rollups
-- has: roster 0008_desired_state
-- has: roster 0009_remote_servers
-- has: roster 0010_presets
-- has: roster 0011_token_words
-- has: roster 0012_calls
-- has: roster 0013_tokens
-- has: roster 0014_agents
-- has: roster 0015_help_texts
-- has: roster 0016_nodes
-- has: roster 0017_owners
-- has: roster 0018_several_nodes
-- has: roster 0019_key_fingerprint
-- has: roster 0020_node_url
-- has: roster 0021_client_sessions
-- has: roster 0022_member_extras
-- has: roster 0023_token_buckets
-- has: roster 0024_agents_of_nodes
-- has: roster 0025_required_migration
-- has: roster 0026_token_shares
-- has: roster 0027_roles
-- has: roster 0028_invitations
-- has: roster 0029_secrets
-- has: roster 0030_audit_log
-- has: roster 0031_sandbox_gaps
-- has: roster 0032_contracts
-- has: roster 0033_member_proposals
-- has: roster 0034_tool_sets
-- has: roster 0035_trash
-- has: roster 0036_edits
-- has: roster 0037_package_locks
-- has: roster 0038_version_look_ups
-- has: roster 0039_bundles
-- has: roster 0040_pinned_tools
-- has: roster 0041_manifest_error_key
-- has: roster 0042_disabled_extras
-- has: roster 0043_token_search_mode
-- has: roster 0044_search_text
-- has: roster 0045_saved_filters
-- has: roster 0046_repeated_failures
-- has: roster 0047_grants
-- has: roster 0048_identities
-- has: roster 0049_member_sign_ins
-- has: roster 0050_outside_issuer
-- has: roster 0051_user_sign_ins
-- has: roster 0052_id_tokens_for_members
-- has: roster 0053_grant_days
-- has: sessions 0001_initial
CREATE TABLE "django_migrations" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "app" varchar(255) NOT NULL, "name" varchar(255) NOT NULL, "applied" datetime NOT NULL);
CREATE TABLE "auth_group_permissions" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "group_id" integer NOT NULL REFERENCES "auth_group" ("id") DEFERRABLE INITIALLY DEFERRED, "permission_id" integer NOT NULL REFERENCES "auth_permission" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "auth_user_groups" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "group_id" integer NOT NULL REFERENCES "auth_group" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "auth_user_user_permissions" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "permission_id" integer NOT NULL REFERENCES "auth_permission" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE UNIQUE INDEX "auth_group_permissions_group_id_permission_id_0cd325b0_uniq" ON "auth_group_permissions" ("group_id", "permission_id");
CREATE INDEX "auth_group_permissions_group_id_b120cbf9" ON "auth_group_permissions" ("group_id");
CREATE INDEX "auth_group_permissions_permission_id_84c5c92e" ON "auth_group_permissions" ("permission_id");
CREATE UNIQUE INDEX "auth_user_groups_user_id_group_id_94350c0c_uniq" ON "auth_user_groups" ("user_id", "group_id");
CREATE INDEX "auth_user_groups_user_id_6a12ed8b" ON "auth_user_groups" ("user_id");
CREATE INDEX "auth_user_groups_group_id_97559544" ON "auth_user_groups" ("group_id");
CREATE UNIQUE INDEX "auth_user_user_permissions_user_id_permission_id_14a6b632_uniq" ON "auth_user_user_permissions" ("user_id", "permission_id");
CREATE INDEX "auth_user_user_permissions_user_id_a95ead1b" ON "auth_user_user_permissions" ("user_id");
CREATE INDEX "auth_user_user_permissions_permission_id_1fbb5f2c" ON "auth_user_user_permissions" ("permission_id");
CREATE TABLE "django_admin_log" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "object_id" text NULL, "object_repr" varchar(200) NOT NULL, "action_flag" smallint unsigned NOT NULL CHECK ("action_flag" >= 0), "change_message" text NOT NULL, "content_type_id" integer NULL REFERENCES "django_content_type" ("id") DEFERRABLE INITIALLY DEFERRED, "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "action_time" datetime NOT NULL);
CREATE INDEX "django_admin_log_content_type_id_c4bce8eb" ON "django_admin_log" ("content_type_id");
CREATE INDEX "django_admin_log_user_id_c564eba6" ON "django_admin_log" ("user_id");
CREATE TABLE "django_content_type" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "app_label" varchar(100) NOT NULL, "model" varchar(100) NOT NULL);
CREATE UNIQUE INDEX "django_content_type_app_label_model_76bd3d3b_uniq" ON "django_content_type" ("app_label", "model");
CREATE TABLE "auth_permission" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "content_type_id" integer NOT NULL REFERENCES "django_content_type" ("id") DEFERRABLE INITIALLY DEFERRED, "codename" varchar(100) NOT NULL, "name" varchar(255) NOT NULL);
CREATE UNIQUE INDEX "auth_permission_content_type_id_codename_01ab375a_uniq" ON "auth_permission" ("content_type_id", "codename");
CREATE INDEX "auth_permission_content_type_id_2f476e4b" ON "auth_permission" ("content_type_id");
CREATE TABLE "auth_group" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(150) NOT NULL UNIQUE);
CREATE TABLE "auth_user" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "password" varchar(128) NOT NULL, "last_login" datetime NULL, "is_superuser" bool NOT NULL, "username" varchar(150) NOT NULL UNIQUE, "last_name" varchar(150) NOT NULL, "email" varchar(254) NOT NULL, "is_staff" bool NOT NULL, "is_active" bool NOT NULL, "date_joined" datetime NOT NULL, "first_name" varchar(150) NOT NULL);
CREATE TABLE "oauth2_provider_idtoken" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "jti" char(32) NOT NULL UNIQUE, "expires" datetime NOT NULL, "scope" text NOT NULL, "created" datetime NOT NULL, "updated" datetime NOT NULL, "application_id" bigint NULL REFERENCES "oauth2_provider_application" ("id") DEFERRABLE INITIALLY DEFERRED, "user_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE INDEX "oauth2_provider_idtoken_application_id_08c5ff4f" ON "oauth2_provider_idtoken" ("application_id");
CREATE INDEX "oauth2_provider_idtoken_user_id_dd512b59" ON "oauth2_provider_idtoken" ("user_id");
CREATE TABLE "oauth2_provider_devicegrant" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "device_code" varchar(100) NOT NULL, "user_code" varchar(100) NOT NULL, "interval" integer NOT NULL, "expires" datetime NOT NULL, "status" varchar(64) NOT NULL, "client_id" varchar(100) NOT NULL, "last_checked" datetime NOT NULL, "user_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "scope" text NOT NULL, CONSTRAINT "oauth2_provider_devicegrant_unique_device_code" UNIQUE ("device_code"));
CREATE INDEX "oauth2_provider_devicegrant_client_id_229dd06d" ON "oauth2_provider_devicegrant" ("client_id");
CREATE INDEX "oauth2_provider_devicegrant_user_id_1cec5156" ON "oauth2_provider_devicegrant" ("user_id");
CREATE TABLE "oauth2_provider_accesstoken" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "token" text NOT NULL, "expires" datetime NOT NULL, "scope" text NOT NULL, "application_id" bigint NULL REFERENCES "oauth2_provider_application" ("id") DEFERRABLE INITIALLY DEFERRED, "user_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "created" datetime NOT NULL, "updated" datetime NOT NULL, "source_refresh_token_id" bigint NULL UNIQUE REFERENCES "oauth2_provider_refreshtoken" ("id") DEFERRABLE INITIALLY DEFERRED, "id_token_id" bigint NULL UNIQUE REFERENCES "oauth2_provider_idtoken" ("id") DEFERRABLE INITIALLY DEFERRED, "token_checksum" varchar(64) NOT NULL UNIQUE, "resource" text NOT NULL CHECK ((JSON_VALID("resource") OR "resource" IS NULL)));
CREATE INDEX "oauth2_provider_accesstoken_application_id_b22886e1" ON "oauth2_provider_accesstoken" ("application_id");
CREATE INDEX "oauth2_provider_accesstoken_user_id_6e4c9a65" ON "oauth2_provider_accesstoken" ("user_id");
CREATE TABLE "oauth2_provider_grant" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "code" varchar(255) NOT NULL UNIQUE, "expires" datetime NOT NULL, "redirect_uri" text NOT NULL, "scope" text NOT NULL, "application_id" bigint NOT NULL REFERENCES "oauth2_provider_application" ("id") DEFERRABLE INITIALLY DEFERRED, "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "created" datetime NOT NULL, "updated" datetime NOT NULL, "code_challenge" varchar(128) NOT NULL, "code_challenge_method" varchar(10) NOT NULL, "nonce" varchar(255) NOT NULL, "claims" text NOT NULL, "resource" text NOT NULL CHECK ((JSON_VALID("resource") OR "resource" IS NULL)));
CREATE INDEX "oauth2_provider_grant_application_id_81923564" ON "oauth2_provider_grant" ("application_id");
CREATE INDEX "oauth2_provider_grant_user_id_e8f62af8" ON "oauth2_provider_grant" ("user_id");
CREATE TABLE "oauth2_provider_refreshtoken" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "token" text NOT NULL, "access_token_id" bigint NULL UNIQUE REFERENCES "oauth2_provider_accesstoken" ("id") DEFERRABLE INITIALLY DEFERRED, "application_id" bigint NOT NULL REFERENCES "oauth2_provider_application" ("id") DEFERRABLE INITIALLY DEFERRED, "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "created" datetime NOT NULL, "updated" datetime NOT NULL, "revoked" datetime NULL, "token_family" char(32) NULL, "token_checksum" varchar(64) NOT NULL, "resource" text NOT NULL CHECK ((JSON_VALID("resource") OR "resource" IS NULL)));
CREATE UNIQUE INDEX "oauth2_provider_refreshtoken_token_checksum_revoked_46c81d1d_uniq" ON "oauth2_provider_refreshtoken" ("token_checksum", "revoked");
CREATE INDEX "oauth2_provider_refreshtoken_application_id_2d1c311b" ON "oauth2_provider_refreshtoken" ("application_id");
CREATE INDEX "oauth2_provider_refreshtoken_user_id_da837fce" ON "oauth2_provider_refreshtoken" ("user_id");
CREATE TABLE "oauth2_provider_application" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "redirect_uris" text NOT NULL, "client_type" varchar(32) NOT NULL, "authorization_grant_type" varchar(44) NOT NULL, "client_secret" varchar(255) NOT NULL, "name" varchar(255) NOT NULL, "user_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "skip_authorization" bool NOT NULL, "created" datetime NOT NULL, "updated" datetime NOT NULL, "algorithm" varchar(5) NOT NULL, "post_logout_redirect_uris" text NOT NULL, "hash_client_secret" bool NOT NULL, "allowed_origins" text NOT NULL, "registration_source" varchar(32) NOT NULL, "cimd_expires_at" datetime NULL, "client_id" varchar(255) NOT NULL UNIQUE);
CREATE INDEX "oauth2_provider_application_client_secret_53133678" ON "oauth2_provider_application" ("client_secret");
CREATE INDEX "oauth2_provider_application_user_id_79829054" ON "oauth2_provider_application" ("user_id");
CREATE INDEX "oauth2_prov_token_f_996e8a_idx" ON "oauth2_provider_refreshtoken" ("token_family");
CREATE TABLE "roster_agentevent" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "kind" varchar(20) NOT NULL, "data" text NOT NULL CHECK ((JSON_VALID("data") OR "data" IS NULL)), "created_at" datetime NOT NULL, "message_id" bigint NOT NULL REFERENCES "roster_agentmessage" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "roster_calltotal" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "outcome" varchar(20) NOT NULL, "count" bigint unsigned NOT NULL CHECK ("count" >= 0), "member_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "one_total_per_outcome" UNIQUE ("member_id", "outcome"));
CREATE INDEX "roster_agentevent_message_id_bc6e98e6" ON "roster_agentevent" ("message_id");
CREATE INDEX "agent_event_by_message" ON "roster_agentevent" ("message_id", "id");
CREATE INDEX "roster_calltotal_member_id_c8b60afd" ON "roster_calltotal" ("member_id");
CREATE TABLE "roster_membergroup" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "group_id" integer NOT NULL REFERENCES "auth_group" ("id") DEFERRABLE INITIALLY DEFERRED, "member_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "group_is_unique_in_its_member" UNIQUE ("member_id", "group_id"));
CREATE INDEX "roster_membergroup_group_id_c61f8fa1" ON "roster_membergroup" ("group_id");
CREATE INDEX "roster_membergroup_member_id_52edb673" ON "roster_membergroup" ("member_id");
CREATE TABLE "roster_callrollup" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "tool_name" varchar(255) NOT NULL, "seconds" integer unsigned NOT NULL CHECK ("seconds" >= 0), "begins" bigint unsigned NOT NULL CHECK ("begins" >= 0), "calls" bigint unsigned NOT NULL CHECK ("calls" >= 0), "failed" bigint unsigned NOT NULL CHECK ("failed" >= 0), "took" real NOT NULL, "slots" text NOT NULL CHECK ((JSON_VALID("slots") OR "slots" IS NULL)), "member_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "one_rollup_per_time_and_tool" UNIQUE ("seconds", "begins", "tool_name", "member_id"));
CREATE TABLE "roster_preset" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(100) NOT NULL, "arguments" text NOT NULL CHECK ((JSON_VALID("arguments") OR "arguments" IS NULL)), "left_out" text NOT NULL CHECK ((JSON_VALID("left_out") OR "left_out" IS NULL)), "updated_at" datetime NOT NULL, "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "tool_id" bigint NOT NULL REFERENCES "roster_tool" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "preset_name_is_unique_for_user_and_tool" UNIQUE ("tool_id", "user_id", "name"));
CREATE INDEX "roster_preset_user_id_cb88dbde" ON "roster_preset" ("user_id");
CREATE TABLE "roster_tokenclient" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(100) NOT NULL, "version" varchar(50) NOT NULL, "first_seen_at" datetime NOT NULL, "last_seen_at" datetime NOT NULL, "calls" bigint unsigned NOT NULL CHECK ("calls" >= 0), "token_id" bigint NOT NULL REFERENCES "roster_token" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "client_is_unique_of_its_token" UNIQUE ("token_id", "name", "version"));
CREATE INDEX "roster_tokenclient_token_id_253e19fd" ON "roster_tokenclient" ("token_id");
CREATE TABLE "roster_agent" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(100) NOT NULL UNIQUE, "direct" bool NOT NULL, "model" varchar(100) NOT NULL, "creator" varchar(200) NOT NULL, "created_at" datetime NOT NULL, "sdk_session_id" varchar(100) NOT NULL, "created_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "made_with_id" bigint NULL, "node_id" bigint NULL REFERENCES "roster_node" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE INDEX "roster_agentsession_created_by_id_3c7dfef2" ON "roster_agent" ("created_by_id");
CREATE INDEX "roster_agentsession_made_with_id_ccb8a14a" ON "roster_agent" ("made_with_id");
CREATE TABLE "roster_token_members" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "token_id" bigint NOT NULL REFERENCES "roster_token" ("id") DEFERRABLE INITIALLY DEFERRED, "guildmember_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "roster_token_tools" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "token_id" bigint NOT NULL REFERENCES "roster_token" ("id") DEFERRABLE INITIALLY DEFERRED, "tool_id" bigint NOT NULL REFERENCES "roster_tool" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE UNIQUE INDEX "roster_token_members_token_id_guildmember_id_4a31dfe6_uniq" ON "roster_token_members" ("token_id", "guildmember_id");
CREATE INDEX "roster_token_members_token_id_2c700828" ON "roster_token_members" ("token_id");
CREATE INDEX "roster_token_members_guildmember_id_b9c1afa5" ON "roster_token_members" ("guildmember_id");
CREATE UNIQUE INDEX "roster_token_tools_token_id_tool_id_0725c085_uniq" ON "roster_token_tools" ("token_id", "tool_id");
CREATE INDEX "roster_token_tools_token_id_bf4776cc" ON "roster_token_tools" ("token_id");
CREATE INDEX "roster_token_tools_tool_id_20ac14aa" ON "roster_token_tools" ("tool_id");
CREATE TABLE "roster_agent_members" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "agent_id" bigint NOT NULL REFERENCES "roster_agent" ("id") DEFERRABLE INITIALLY DEFERRED, "guildmember_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "roster_agentmessage" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "prompt" text NOT NULL, "timeout" real NOT NULL, "requester" varchar(200) NOT NULL, "status" varchar(20) NOT NULL, "queued_at" datetime NOT NULL, "started_at" datetime NULL, "finished_at" datetime NULL, "cancel_requested_at" datetime NULL, "lease_id" char(32) NULL, "result" text NOT NULL, "usage" text NOT NULL CHECK ((JSON_VALID("usage") OR "usage" IS NULL)), "error_kind" varchar(20) NOT NULL, "error_message" text NOT NULL, "requested_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "asked_with_id" bigint NULL, "token_id" bigint NULL REFERENCES "roster_token" ("id") DEFERRABLE INITIALLY DEFERRED, "source" varchar(10) NOT NULL, "agent_id" bigint NOT NULL REFERENCES "roster_agent" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE UNIQUE INDEX "roster_agent_members_agent_id_guildmember_id_3bbdf0e6_uniq" ON "roster_agent_members" ("agent_id", "guildmember_id");
CREATE INDEX "roster_agent_members_agent_id_3edce86e" ON "roster_agent_members" ("agent_id");
CREATE INDEX "roster_agent_members_guildmember_id_ba616731" ON "roster_agent_members" ("guildmember_id");
CREATE INDEX "roster_agentmessage_requested_by_id_077fc5b2" ON "roster_agentmessage" ("requested_by_id");
CREATE INDEX "roster_agentmessage_asked_with_id_05511e2d" ON "roster_agentmessage" ("asked_with_id");
CREATE INDEX "roster_agentmessage_token_id_3f142215" ON "roster_agentmessage" ("token_id");
CREATE INDEX "roster_agentmessage_agent_id_5e09f6cf" ON "roster_agentmessage" ("agent_id");
CREATE INDEX "agent_active" ON "roster_agentmessage" ("status", "id") WHERE "status" IN ('queued', 'running');
CREATE UNIQUE INDEX "one_message_of_an_agent_runs" ON "roster_agentmessage" ("agent_id") WHERE "status" = 'running';
CREATE TABLE "roster_portallocation" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "port" integer unsigned NOT NULL CHECK ("port" >= 0), "allocated_at" datetime NOT NULL, "member_id" bigint NOT NULL UNIQUE REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, "lease_id" char(32) NULL, CONSTRAINT "port_is_in_the_managed_range" CHECK (("port" >= 20000 AND "port" <= 30000)), CONSTRAINT "port_is_unique_in_its_runtime" UNIQUE ("lease_id", "port"));
CREATE INDEX "roster_agent_node_id_33fbe61c" ON "roster_agent" ("node_id");
CREATE TABLE "roster_clientsession" ("digest" varchar(64) NOT NULL PRIMARY KEY, "ended_at" datetime NULL, "log_level" varchar(20) NOT NULL, "subscriptions" text DEFAULT '{}' NOT NULL CHECK ((JSON_VALID("subscriptions") OR "subscriptions" IS NULL)), "changed_at" datetime NOT NULL);
CREATE INDEX "roster_clientsession_changed_at_c5f7a8f4" ON "roster_clientsession" ("changed_at");
CREATE TABLE "roster_memberextras" ("member_id" bigint NOT NULL PRIMARY KEY REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, "prompts" text NOT NULL CHECK ((JSON_VALID("prompts") OR "prompts" IS NULL)), "resources" text NOT NULL CHECK ((JSON_VALID("resources") OR "resources" IS NULL)), "resource_templates" text NOT NULL CHECK ((JSON_VALID("resource_templates") OR "resource_templates" IS NULL)), "digest" varchar(64) NOT NULL);
CREATE TABLE "roster_tokenbucket" ("token_id" bigint NOT NULL PRIMARY KEY REFERENCES "roster_token" ("id") DEFERRABLE INITIALLY DEFERRED, "full_at" datetime NOT NULL);
CREATE TABLE "roster_hall" ("id" smallint unsigned NOT NULL PRIMARY KEY CHECK ("id" >= 0), "hall_id" char(32) NOT NULL, "access_version" bigint NOT NULL, "rolled_up_until" datetime NULL, "key_fingerprint" varchar(64) DEFAULT '' NOT NULL, "required_migration" integer unsigned DEFAULT 0 NOT NULL CHECK ("required_migration" >= 0), CONSTRAINT "one_hall_per_database" CHECK ("id" = 1));
CREATE TABLE "roster_node" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(64) NOT NULL UNIQUE, "lease_id" char(32) NULL UNIQUE, "host" varchar(255) NOT NULL, "pid" integer unsigned NULL CHECK ("pid" >= 0), "identity" varchar(100) NOT NULL, "started_at" datetime NULL, "heartbeat_at" datetime NULL, "version" varchar(50) NOT NULL, "capacity" integer unsigned NULL CHECK ("capacity" >= 0), "cpu_percent" real NULL, "memory_bytes" bigint NULL, "beat" bigint DEFAULT 0 NOT NULL, "fence_is_on" bool DEFAULT 0 NOT NULL, "folders" text DEFAULT '{}' NOT NULL CHECK ((JSON_VALID("folders") OR "folders" IS NULL)), "is_draining" bool DEFAULT 0 NOT NULL, "labels" text DEFAULT '[]' NOT NULL CHECK ((JSON_VALID("labels") OR "labels" IS NULL)), "url" varchar(300) DEFAULT '' NOT NULL, "agent_problem" text DEFAULT '' NOT NULL, "newest_migration" integer unsigned DEFAULT 0 NOT NULL CHECK ("newest_migration" >= 0), "sandbox_gaps" text NULL CHECK ((JSON_VALID("sandbox_gaps") OR "sandbox_gaps" IS NULL)));
CREATE TABLE "roster_tokenshare" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "lease_id" char(32) NOT NULL, "calls" integer unsigned NOT NULL CHECK ("calls" >= 0), "token_id" bigint NOT NULL REFERENCES "roster_token" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "one_share_per_token_and_lease" UNIQUE ("token_id", "lease_id"));
CREATE INDEX "roster_tokenshare_token_id_c0e0e34c" ON "roster_tokenshare" ("token_id");
CREATE TABLE "roster_role" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(64) NOT NULL UNIQUE, "group_id" integer NOT NULL UNIQUE REFERENCES "auth_group" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "roster_invitation" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "digest" varchar(64) NOT NULL UNIQUE, "note" varchar(150) NOT NULL, "created_at" datetime NOT NULL, "expires_at" datetime NOT NULL, "used_at" datetime NULL, "revoked_at" datetime NULL, "created_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "role_id" bigint NOT NULL REFERENCES "roster_role" ("id") DEFERRABLE INITIALLY DEFERRED, "used_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE INDEX "roster_invitation_created_by_id_e76ee1ec" ON "roster_invitation" ("created_by_id");
CREATE INDEX "roster_invitation_role_id_0cdffde5" ON "roster_invitation" ("role_id");
CREATE INDEX "roster_invitation_used_by_id_cc995f9e" ON "roster_invitation" ("used_by_id");
CREATE TABLE "roster_secret" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(64) NOT NULL UNIQUE, "encrypted" text NOT NULL, "created_at" datetime NOT NULL, "changed_at" datetime NOT NULL, "changed_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "roster_secretuse" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "digest" varchar(64) NOT NULL, "parts" text NOT NULL CHECK ((JSON_VALID("parts") OR "parts" IS NULL)), "allowed_at" datetime NOT NULL, "allowed_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "member_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, "secret_id" bigint NOT NULL REFERENCES "roster_secret" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "secret_is_allowed_once_for_a_member" UNIQUE ("secret_id", "member_id"));
CREATE INDEX "roster_secret_changed_by_id_2851e794" ON "roster_secret" ("changed_by_id");
CREATE INDEX "roster_secretuse_allowed_by_id_65d8f6d9" ON "roster_secretuse" ("allowed_by_id");
CREATE INDEX "roster_secretuse_member_id_133ac86e" ON "roster_secretuse" ("member_id");
CREATE INDEX "roster_secretuse_secret_id_650ef9fc" ON "roster_secretuse" ("secret_id");
CREATE TABLE "roster_auditentry" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL, "kind" varchar(30) NOT NULL, "source" varchar(10) NOT NULL, "actor" varchar(400) NOT NULL, "actor_user" bigint NULL, "actor_token" bigint NULL, "address" varchar(100) NOT NULL, "target" varchar(400) NOT NULL, "member" varchar(64) NOT NULL, "before" text NULL CHECK ((JSON_VALID("before") OR "before" IS NULL)), "after" text NULL CHECK ((JSON_VALID("after") OR "after" IS NULL)));
CREATE TABLE "roster_auditoverflow" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "kind" varchar(30) NOT NULL, "hour" datetime NOT NULL, "count" bigint unsigned NOT NULL CHECK ("count" >= 0), CONSTRAINT "one_overflow_per_kind_and_hour" UNIQUE ("kind", "hour"));
CREATE TRIGGER roster_auditentry_no_update BEFORE UPDATE ON roster_auditentry
BEGIN SELECT RAISE(ABORT, 'Entries of the audit log are only added. Nobody changes or deletes them.'); END;
CREATE TRIGGER roster_auditentry_no_delete BEFORE DELETE ON roster_auditentry
WHEN OLD.at >= strftime('%Y-%m-%d %H:%M:%f', 'now', '-30 days')
BEGIN SELECT RAISE(ABORT, 'Entries of the audit log are kept for 30 days at least. Only older ones can be deleted.'); END;
CREATE TRIGGER roster_auditentry_no_replace BEFORE INSERT ON roster_auditentry
WHEN EXISTS (SELECT 1 FROM roster_auditentry WHERE id = NEW.id)
BEGIN SELECT RAISE(ABORT, 'Entries of the audit log are only added. Nobody changes or deletes them.'); END;
CREATE INDEX "roster_audi_kind_abcc3f_idx" ON "roster_auditentry" ("kind", "at");
CREATE INDEX "roster_audi_at_f29411_idx" ON "roster_auditentry" ("at");
CREATE TABLE "roster_call" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "tool_name" varchar(255) NOT NULL, "arguments" text NOT NULL CHECK ((JSON_VALID("arguments") OR "arguments" IS NULL)), "timeout" real NOT NULL, "requester" varchar(400) NOT NULL, "idempotency_key" varchar(255) NULL, "secret_paths" text NOT NULL CHECK ((JSON_VALID("secret_paths") OR "secret_paths" IS NULL)), "status" varchar(20) NOT NULL, "queued_at" datetime NOT NULL, "started_at" datetime NULL, "finished_at" datetime NULL, "cancel_requested_at" datetime NULL, "lease_id" char(32) NULL, "progress" text NULL CHECK ((JSON_VALID("progress") OR "progress" IS NULL)), "result" text NULL CHECK ((JSON_VALID("result") OR "result" IS NULL)), "error_kind" varchar(20) NOT NULL, "error_message" text NOT NULL, "error_code" integer NULL, "error_data" text NULL CHECK ((JSON_VALID("error_data") OR "error_data" IS NULL)), "member_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, "requested_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "token_id" bigint NULL REFERENCES "roster_token" ("id") DEFERRABLE INITIALLY DEFERRED, "source" varchar(10) NOT NULL, "tool_version" varchar(64) DEFAULT '' NOT NULL, "tool_set" varchar(64) NULL, "search_text" text NULL);
CREATE UNIQUE INDEX "idempotency_key_is_unique_per_token" ON "roster_call" ("token_id", "idempotency_key") WHERE ("idempotency_key" IS NOT NULL AND "token_id" IS NOT NULL);
CREATE UNIQUE INDEX "idempotency_key_is_unique_without_token" ON "roster_call" ("requested_by_id", "idempotency_key") WHERE ("idempotency_key" IS NOT NULL AND "token_id" IS NULL);
CREATE INDEX "roster_call_member_id_71453a63" ON "roster_call" ("member_id");
CREATE INDEX "roster_call_requested_by_id_8225b36f" ON "roster_call" ("requested_by_id");
CREATE INDEX "call_active" ON "roster_call" ("status", "id") WHERE "status" IN ('queued', 'running');
CREATE INDEX "call_by_member" ON "roster_call" ("member_id", "id" DESC);
CREATE INDEX "call_by_end" ON "roster_call" ("finished_at");
CREATE INDEX "call_by_token" ON "roster_call" ("token_id", "id" DESC) WHERE "token_id" IS NOT NULL;
CREATE TABLE "roster_tool" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(255) NOT NULL, "position" integer unsigned NOT NULL CHECK ("position" >= 0), "definition" text NOT NULL CHECK ((JSON_VALID("definition") OR "definition" IS NULL)), "schema_error" text NOT NULL, "listed" bool NOT NULL, "enabled" bool NOT NULL, "member_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, "is_held" bool DEFAULT 0 NOT NULL, "version" varchar(64) DEFAULT '' NOT NULL, CONSTRAINT "tool_name_is_unique_in_its_member" UNIQUE ("member_id", "name"));
CREATE INDEX "roster_tool_member_id_1900ab9c" ON "roster_tool" ("member_id");
CREATE TABLE "roster_contract" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "kind" varchar(20) NOT NULL, "name" varchar(255) NOT NULL, "version" varchar(64) NOT NULL, "approved_version" varchar(64) NOT NULL, "is_held" bool NOT NULL, "grade" varchar(20) NOT NULL, "reason" varchar(200) NOT NULL, "changed_at" datetime NOT NULL, "approver" varchar(400) NOT NULL, "approved_at" datetime NULL, "approved_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "member_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "contract_is_unique_in_its_member" UNIQUE ("member_id", "kind", "name"));
CREATE TABLE "roster_contractversion" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "version" varchar(64) NOT NULL, "definition" text NOT NULL, "grade" varchar(20) NOT NULL, "findings" text NOT NULL CHECK ((JSON_VALID("findings") OR "findings" IS NULL)), "score" smallint unsigned NOT NULL CHECK ("score" >= 0), "created_at" datetime NOT NULL, "contract_id" bigint NOT NULL REFERENCES "roster_contract" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "version_is_unique_in_its_contract" UNIQUE ("contract_id", "version"));
CREATE INDEX "roster_contract_approved_by_id_0b97c970" ON "roster_contract" ("approved_by_id");
CREATE INDEX "roster_contract_member_id_ec801f29" ON "roster_contract" ("member_id");
CREATE INDEX "roster_contractversion_contract_id_ce185b43" ON "roster_contractversion" ("contract_id");
CREATE TABLE "roster_memberproposal" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(64) NOT NULL, "text" text NOT NULL, "digest" varchar(64) NOT NULL, "source" varchar(100) NOT NULL, "notes" text NOT NULL CHECK ((JSON_VALID("notes") OR "notes" IS NULL)), "inputs" text NOT NULL CHECK ((JSON_VALID("inputs") OR "inputs" IS NULL)), "secrets" text NOT NULL CHECK ((JSON_VALID("secrets") OR "secrets" IS NULL)), "created_at" datetime NOT NULL, "approved_at" datetime NULL, "allowed_at" datetime NULL, "nodes" text NOT NULL CHECK ((JSON_VALID("nodes") OR "nodes" IS NULL)), "approved_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "created_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE UNIQUE INDEX "one_open_proposal_for_a_name" ON "roster_memberproposal" ("name") WHERE "approved_at" IS NULL;
CREATE INDEX "roster_memberproposal_approved_by_id_51232a70" ON "roster_memberproposal" ("approved_by_id");
CREATE INDEX "roster_memberproposal_created_by_id_1b41278f" ON "roster_memberproposal" ("created_by_id");
CREATE TABLE "roster_toolsetgroup" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "group_id" integer NOT NULL REFERENCES "auth_group" ("id") DEFERRABLE INITIALLY DEFERRED, "tool_set_id" bigint NOT NULL REFERENCES "roster_toolset" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "group_is_unique_in_its_tool_set" UNIQUE ("tool_set_id", "group_id"));
CREATE TABLE "roster_toolset" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(64) NOT NULL UNIQUE, "title" varchar(100) NOT NULL, "description" varchar(2000) NOT NULL, "created_at" datetime NOT NULL, "changed_at" datetime NOT NULL, "created_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE INDEX "roster_toolsetgroup_group_id_806df90f" ON "roster_toolsetgroup" ("group_id");
CREATE INDEX "roster_toolsetgroup_tool_set_id_16914aa2" ON "roster_toolsetgroup" ("tool_set_id");
CREATE INDEX "roster_toolset_created_by_id_94302014" ON "roster_toolset" ("created_by_id");
CREATE TABLE "roster_toolsetentry" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "tool_name" varchar(255) NOT NULL, "new_name" varchar(64) NOT NULL, "new_description" varchar(4000) NOT NULL, "position" integer unsigned NOT NULL CHECK ("position" >= 0), "member_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, "tool_set_id" bigint NOT NULL REFERENCES "roster_toolset" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "entry_is_unique_in_its_tool_set" UNIQUE ("tool_set_id", "member_id", "tool_name"));
CREATE INDEX "roster_toolsetentry_member_id_54b1e95a" ON "roster_toolsetentry" ("member_id");
CREATE INDEX "roster_toolsetentry_tool_set_id_6756102e" ON "roster_toolsetentry" ("tool_set_id");
CREATE TABLE "roster_trashedmember" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(64) NOT NULL, "directory" varchar(1000) NOT NULL, "removed_at" datetime NOT NULL, "is_replaced" bool NOT NULL, "restore_requested_at" datetime NULL, "nodes" text NOT NULL CHECK ((JSON_VALID("nodes") OR "nodes" IS NULL)), "moved_at" text NOT NULL CHECK ((JSON_VALID("moved_at") OR "moved_at" IS NULL)), "removed_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE INDEX "roster_trashedmember_removed_by_id_ee16373a" ON "roster_trashedmember" ("removed_by_id");
CREATE TABLE "roster_manifestedit" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "changes" text NOT NULL CHECK ((JSON_VALID("changes") OR "changes" IS NULL)), "fault" text NOT NULL, "notes" text NOT NULL CHECK ((JSON_VALID("notes") OR "notes" IS NULL)), "secrets" text NOT NULL CHECK ((JSON_VALID("secrets") OR "secrets" IS NULL)), "needs_restart" bool NOT NULL, "identity_before" varchar(64) NOT NULL, "identity_after" varchar(64) NOT NULL, "created_at" datetime NOT NULL, "approved_at" datetime NULL, "keeps_secrets" bool NOT NULL, "allowed_at" datetime NULL, "nodes" text NOT NULL CHECK ((JSON_VALID("nodes") OR "nodes" IS NULL)), "approved_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "created_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "member_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, "undoes_id" bigint NULL REFERENCES "roster_manifestedit" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE INDEX "roster_manifestedit_approved_by_id_d575390d" ON "roster_manifestedit" ("approved_by_id");
CREATE INDEX "roster_manifestedit_created_by_id_468cdd26" ON "roster_manifestedit" ("created_by_id");
CREATE INDEX "roster_manifestedit_member_id_ffcf7de6" ON "roster_manifestedit" ("member_id");
CREATE INDEX "roster_manifestedit_undoes_id_6c33d90f" ON "roster_manifestedit" ("undoes_id");
CREATE TABLE "roster_packagelock" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "specification" text NOT NULL, "key" varchar(64) NOT NULL, "text" text NOT NULL, "digest" varchar(64) NOT NULL, "version" varchar(100) NOT NULL, "count" integer unsigned NOT NULL CHECK ("count" >= 0), "scripts" text NOT NULL CHECK ((JSON_VALID("scripts") OR "scripts" IS NULL)), "made_at" datetime NOT NULL, "node" varchar(200) NOT NULL, "used_at" datetime NOT NULL, "member_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "one_lock_for_a_specification" UNIQUE ("member_id", "key"));
CREATE INDEX "roster_packagelock_member_id_24e7cbbc" ON "roster_packagelock" ("member_id");
CREATE TABLE "roster_versionlookup" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "package" varchar(300) NOT NULL, "asked_at" datetime NOT NULL, "answered_at" datetime NULL, "version" varchar(100) NOT NULL, "fault" text NOT NULL, "member_id" bigint NOT NULL UNIQUE REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "roster_bundle" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "digest" varchar(64) NOT NULL, "size" bigint NOT NULL, "unpacked_size" bigint NOT NULL, "file_count" integer NOT NULL, "files" text NOT NULL CHECK ((JSON_VALID("files") OR "files" IS NULL)), "author" varchar(200) NOT NULL, "homepage" varchar(500) NOT NULL, "created_at" datetime NOT NULL, "created_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "proposal_id" bigint NULL UNIQUE REFERENCES "roster_memberproposal" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "roster_bundlepart" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "number" integer NOT NULL, "content" BLOB NOT NULL, "bundle_id" bigint NOT NULL REFERENCES "roster_bundle" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "one_part_of_a_bundle_for_a_number" UNIQUE ("bundle_id", "number"));
CREATE INDEX "roster_bundle_created_by_id_ff8fca90" ON "roster_bundle" ("created_by_id");
CREATE INDEX "roster_bundlepart_bundle_id_04409b0c" ON "roster_bundlepart" ("bundle_id");
CREATE TABLE "roster_pinnedtool" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "pinned_at" datetime NOT NULL, "tool_id" bigint NOT NULL REFERENCES "roster_tool" ("id") DEFERRABLE INITIALLY DEFERRED, "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "tool_is_pinned_once_by_a_user" UNIQUE ("user_id", "tool_id"));
CREATE INDEX "roster_pinnedtool_tool_id_4decc35d" ON "roster_pinnedtool" ("tool_id");
CREATE INDEX "roster_pinnedtool_user_id_edd19b1c" ON "roster_pinnedtool" ("user_id");
CREATE TABLE "roster_disabledextra" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "kind" varchar(20) NOT NULL, "name" text NOT NULL, "key" varchar(255) NOT NULL, "member_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "extra_is_disabled_once_in_its_member" UNIQUE ("member_id", "kind", "key"));
CREATE INDEX "roster_disabledextra_member_id_2124021b" ON "roster_disabledextra" ("member_id");
CREATE TABLE "roster_savedfilter" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(60) NOT NULL, "query" varchar(2000) NOT NULL, "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "saved_filter_name_is_unique_for_user" UNIQUE ("user_id", "name"));
CREATE INDEX "roster_savedfilter_user_id_875610b2" ON "roster_savedfilter" ("user_id");
CREATE TABLE "roster_statuschange" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "old" varchar(20) NOT NULL, "new" varchar(20) NOT NULL, "cause" varchar(40) NOT NULL, "message" text NOT NULL, "exit_code" integer NULL, "log_tail" text NOT NULL, "created_at" datetime NOT NULL, "member_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, "repeated_at" datetime NULL, "repeats" integer unsigned DEFAULT 0 NOT NULL CHECK ("repeats" >= 0));
CREATE INDEX "roster_statuschange_member_id_4b9ae6ee" ON "roster_statuschange" ("member_id");
CREATE INDEX "status_change_by_member" ON "roster_statuschange" ("member_id", "id" DESC);
CREATE TABLE "roster_clientregistration" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "address" varchar(100) NOT NULL, "at" datetime DEFAULT (STRFTIME('%Y-%m-%d %H:%M:%f', 'NOW')) NOT NULL);
CREATE TABLE "roster_token" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(100) NOT NULL, "digest" varchar(64) NOT NULL UNIQUE, "hint" varchar(12) NOT NULL, "created_at" datetime NOT NULL, "expires_at" datetime NULL, "revoked_at" datetime NULL, "last_used_at" datetime NULL, "scope" varchar(10) NOT NULL, "calls_per_minute" integer unsigned NULL CHECK ("calls_per_minute" >= 0), "max_in_flight" integer unsigned NULL CHECK ("max_in_flight" >= 0), "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "tool_set_id" bigint NULL REFERENCES "roster_toolset" ("id") DEFERRABLE INITIALLY DEFERRED, "pinned_tools" text DEFAULT '[]' NOT NULL CHECK ((JSON_VALID("pinned_tools") OR "pinned_tools" IS NULL)), "search_mode" bool DEFAULT 0 NOT NULL, "resource" varchar(210) DEFAULT '' NOT NULL, "made_with_id" bigint NULL REFERENCES "roster_token" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "token_scope_is_known" CHECK ("scope" IN ('all', 'members', 'tools')));
CREATE INDEX "roster_clientregistration_at_7b76ff2d" ON "roster_clientregistration" ("at");
CREATE INDEX "roster_token_user_id_d68cc499" ON "roster_token" ("user_id");
CREATE INDEX "roster_token_tool_set_id_0a327a59" ON "roster_token" ("tool_set_id");
CREATE INDEX "roster_token_made_with_id_4fae02b8" ON "roster_token" ("made_with_id");
CREATE TABLE "roster_accesstoken" ("digest" varchar(64) NOT NULL PRIMARY KEY, "expires_at" datetime NOT NULL, "grant_id" bigint NOT NULL REFERENCES "roster_grant" ("token_id") DEFERRABLE INITIALLY DEFERRED);
CREATE INDEX "roster_accesstoken_grant_id_e709ac1a" ON "roster_accesstoken" ("grant_id");
CREATE TABLE "roster_guildmember" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "name" varchar(64) NOT NULL UNIQUE, "directory" varchar(1000) NOT NULL, "manifest" text NOT NULL CHECK ((JSON_VALID("manifest") OR "manifest" IS NULL)), "manifest_error" text NOT NULL, "manifest_warnings" text NOT NULL CHECK ((JSON_VALID("manifest_warnings") OR "manifest_warnings" IS NULL)), "display_name" varchar(200) NOT NULL, "version" varchar(100) NOT NULL, "description" text NOT NULL, "server_url" varchar(2048) NOT NULL, "removed_at" datetime NULL, "enabled" bool NOT NULL, "restart_requested_at" datetime NULL, "refresh_requested_at" datetime NULL, "status" varchar(20) NOT NULL, "status_changed_at" datetime NOT NULL, "last_error" text NOT NULL, "progress" varchar(200) NOT NULL, "warnings" text NOT NULL CHECK ((JSON_VALID("warnings") OR "warnings" IS NULL)), "pid" integer unsigned NULL CHECK ("pid" >= 0), "last_port" integer unsigned NULL CHECK ("last_port" >= 0), "exit_code" integer NULL, "started_at" datetime NULL, "protocol_version" varchar(20) NOT NULL, "server_info" text NOT NULL CHECK ((JSON_VALID("server_info") OR "server_info" IS NULL)), "capabilities" text NOT NULL CHECK ((JSON_VALID("capabilities") OR "capabilities" IS NULL)), "instructions" text NOT NULL, "restarts" integer unsigned NOT NULL CHECK ("restarts" >= 0), "restarts_total" integer unsigned NOT NULL CHECK ("restarts_total" >= 0), "next_restart_at" datetime NULL, "no_answer_since" datetime NULL, "desired_state" varchar(10) NOT NULL, "node_id" bigint NULL REFERENCES "roster_node" ("id") DEFERRABLE INITIALLY DEFERRED, "lease_id" char(32) NULL, "digest" varchar(64) DEFAULT '' NOT NULL, "epoch" bigint DEFAULT 0 NOT NULL, "requested_node_id" bigint NULL REFERENCES "roster_node" ("id") DEFERRABLE INITIALLY DEFERRED, "manifest_error_key" text DEFAULT '' NOT NULL, "needs_sign_in" bool DEFAULT 0 NOT NULL, CONSTRAINT "member_status_is_known" CHECK ("status" IN ('disconnected', 'starting', 'connected', 'stopping', 'error')));
CREATE INDEX "roster_guildmember_node_id_8ff88d60" ON "roster_guildmember" ("node_id");
CREATE INDEX "roster_guildmember_requested_node_id_61f0e4f0" ON "roster_guildmember" ("requested_node_id");
CREATE TABLE "roster_membersignin" ("member_id" bigint NOT NULL PRIMARY KEY REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, "url" varchar(2048) NOT NULL, "version" bigint DEFAULT 0 NOT NULL, "resource_metadata" text NOT NULL, "challenge_scopes" text NOT NULL CHECK ((JSON_VALID("challenge_scopes") OR "challenge_scopes" IS NULL)), "wanted_scopes" text NOT NULL CHECK ((JSON_VALID("wanted_scopes") OR "wanted_scopes" IS NULL)), "step_ups" integer unsigned NOT NULL CHECK ("step_ups" >= 0), "issuer" varchar(2048) NOT NULL, "server" text NOT NULL CHECK ((JSON_VALID("server") OR "server" IS NULL)), "client_id" varchar(2048) NOT NULL, "client_method" varchar(40) NOT NULL, "client_source" varchar(20) NOT NULL, "redirect" varchar(2048) NOT NULL, "encrypted" text NOT NULL, "has_tokens" bool NOT NULL, "scopes" text NOT NULL CHECK ((JSON_VALID("scopes") OR "scopes" IS NULL)), "expires_at" datetime NULL, "signed_in_at" datetime NULL, "refresh_lease" char(32) NULL, "refresh_until" datetime NULL, "refresh_failures" integer unsigned NOT NULL CHECK ("refresh_failures" >= 0), "next_refresh_at" datetime NULL, "signed_in_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "roster_membersigninattempt" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "state_digest" varchar(64) NOT NULL UNIQUE, "session_digest" varchar(64) NOT NULL, "url" varchar(2048) NOT NULL, "encrypted" text NOT NULL, "created_at" datetime NOT NULL, "member_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE INDEX "roster_membersignin_signed_in_by_id_a7646f85" ON "roster_membersignin" ("signed_in_by_id");
CREATE INDEX "roster_membersigninattempt_member_id_1d5fa341" ON "roster_membersigninattempt" ("member_id");
CREATE INDEX "roster_membersigninattempt_user_id_f272d03d" ON "roster_membersigninattempt" ("user_id");
CREATE TABLE "roster_grant" ("token_id" bigint NOT NULL PRIMARY KEY REFERENCES "roster_token" ("id") DEFERRABLE INITIALLY DEFERRED, "client_id" varchar(255) NOT NULL, "redirect_uri" varchar(500) NOT NULL, "code_digest" varchar(64) NULL UNIQUE, "redeemed_at" datetime NULL, "family" char(32) NULL UNIQUE, "ends_at" datetime NOT NULL, "issuer" varchar(500) DEFAULT '' NOT NULL, "outside_key" varchar(64) NULL UNIQUE, "days" integer unsigned NULL CHECK ("days" >= 0));
CREATE INDEX "roster_grant_client_id_a506d4d7" ON "roster_grant" ("client_id");
CREATE TABLE "roster_usersigninattempt" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "state_digest" varchar(64) NOT NULL UNIQUE, "session_digest" varchar(64) NOT NULL, "url" varchar(2048) NOT NULL, "encrypted" text NOT NULL, "created_at" datetime NOT NULL, "for_lists" bool NOT NULL, "member_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, "user_id" integer NOT NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE "roster_usersignin" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "url" varchar(2048) NOT NULL, "version" bigint DEFAULT 0 NOT NULL, "resource_metadata" text NOT NULL, "challenge_scopes" text NOT NULL CHECK ((JSON_VALID("challenge_scopes") OR "challenge_scopes" IS NULL)), "wanted_scopes" text NOT NULL CHECK ((JSON_VALID("wanted_scopes") OR "wanted_scopes" IS NULL)), "step_ups" integer unsigned NOT NULL CHECK ("step_ups" >= 0), "issuer" varchar(2048) NOT NULL, "server" text NOT NULL CHECK ((JSON_VALID("server") OR "server" IS NULL)), "client_id" varchar(2048) NOT NULL, "client_method" varchar(40) NOT NULL, "client_source" varchar(20) NOT NULL, "redirect" varchar(2048) NOT NULL, "encrypted" text NOT NULL, "has_tokens" bool NOT NULL, "scopes" text NOT NULL CHECK ((JSON_VALID("scopes") OR "scopes" IS NULL)), "expires_at" datetime NULL, "signed_in_at" datetime NULL, "refresh_lease" char(32) NULL, "refresh_until" datetime NULL, "refresh_failures" integer unsigned NOT NULL CHECK ("refresh_failures" >= 0), "next_refresh_at" datetime NULL, "member_id" bigint NOT NULL REFERENCES "roster_guildmember" ("id") DEFERRABLE INITIALLY DEFERRED, "signed_in_by_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "user_id" integer NULL REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, CONSTRAINT "one_sign_in_of_a_user" UNIQUE ("member_id", "user_id"));
CREATE INDEX "roster_usersigninattempt_member_id_c9ec1553" ON "roster_usersigninattempt" ("member_id");
CREATE INDEX "roster_usersigninattempt_user_id_3025a295" ON "roster_usersigninattempt" ("user_id");
CREATE UNIQUE INDEX "one_sign_in_for_lists" ON "roster_usersignin" ("member_id") WHERE "user_id" IS NULL;
CREATE INDEX "roster_usersignin_member_id_6bbf65e4" ON "roster_usersignin" ("member_id");
CREATE INDEX "roster_usersignin_signed_in_by_id_6d8dd1c2" ON "roster_usersignin" ("signed_in_by_id");
CREATE INDEX "roster_usersignin_user_id_cfc5efb5" ON "roster_usersignin" ("user_id");
CREATE TABLE "roster_identity" ("id" integer NOT NULL PRIMARY KEY AUTOINCREMENT, "issuer" varchar(500) NOT NULL, "subject" varchar(255) NOT NULL, "created_at" datetime NOT NULL, "last_login_at" datetime NOT NULL, "granted_groups" text DEFAULT '[]' NOT NULL CHECK ((JSON_VALID("granted_groups") OR "granted_groups" IS NULL)), "user_id" integer NOT NULL UNIQUE REFERENCES "auth_user" ("id") DEFERRABLE INITIALLY DEFERRED, "id_token" text DEFAULT '' NOT NULL, "id_token_ends_at" datetime NULL, CONSTRAINT "one_user_per_issuer_and_subject" UNIQUE ("issuer", "subject"));
CREATE TABLE "django_session" ("session_key" varchar(40) NOT NULL PRIMARY KEY, "session_data" text NOT NULL, "expire_date" datetime NOT NULL);
CREATE INDEX "django_session_expire_date_a5c62663" ON "django_session" ("expire_date");
INSERT INTO django_migrations (app, name, applied) VALUES
('admin', '0001_initial', datetime('now')),
('admin', '0002_logentry_remove_auto_add', datetime('now')),
('admin', '0003_logentry_add_action_flag_choices', datetime('now')),
('auth', '0001_initial', datetime('now')),
('auth', '0002_alter_permission_name_max_length', datetime('now')),
('auth', '0003_alter_user_email_max_length', datetime('now')),
('auth', '0004_alter_user_username_opts', datetime('now')),
('auth', '0005_alter_user_last_login_null', datetime('now')),
('auth', '0006_require_contenttypes_0002', datetime('now')),
('auth', '0007_alter_validators_add_error_messages', datetime('now')),
('auth', '0008_alter_user_username_max_length', datetime('now')),
('auth', '0009_alter_user_last_name_max_length', datetime('now')),
('auth', '0010_alter_group_name_max_length', datetime('now')),
('auth', '0011_update_proxy_permissions', datetime('now')),
('auth', '0012_alter_user_first_name_max_length', datetime('now')),
('contenttypes', '0001_initial', datetime('now')),
('contenttypes', '0002_remove_content_type_name', datetime('now')),
('oauth2_provider', '0001_initial', datetime('now')),
('oauth2_provider', '0002_auto_20190406_1805', datetime('now')),
('oauth2_provider', '0003_auto_20201211_1314', datetime('now')),
('oauth2_provider', '0004_auto_20200902_2022', datetime('now')),
('oauth2_provider', '0005_auto_20211222_2352', datetime('now')),
('oauth2_provider', '0006_alter_application_client_secret', datetime('now')),
('oauth2_provider', '0007_application_post_logout_redirect_uris', datetime('now')),
('oauth2_provider', '0008_alter_accesstoken_token', datetime('now')),
('oauth2_provider', '0009_add_hash_client_secret', datetime('now')),
('oauth2_provider', '0010_application_allowed_origins', datetime('now')),
('oauth2_provider', '0011_refreshtoken_token_family', datetime('now')),
('oauth2_provider', '0012_add_token_checksum', datetime('now')),
('oauth2_provider', '0013_alter_application_authorization_grant_type_device', datetime('now')),
('oauth2_provider', '0014_alter_help_text', datetime('now')),
('oauth2_provider', '0015_refreshtoken_token_checksum', datetime('now')),
('oauth2_provider', '0016_alter_devicegrant_scope', datetime('now')),
('oauth2_provider', '0017_application_dcr_created', datetime('now')),
('oauth2_provider', '0018_resource_indicators', datetime('now')),
('oauth2_provider', '0019_application_registration_source', datetime('now')),
('oauth2_provider', '0020_cimd_application_fields', datetime('now')),
('oauth2_provider', '0021_translatable_field_labels', datetime('now')),
('oauth2_provider', '0022_refreshtoken_token_family_index', datetime('now')),
('roster', '0001_initial', datetime('now')),
('roster', '0002_what_belongs_to_a_token', datetime('now')),
('roster', '0003_who_made_old_sessions', datetime('now')),
('roster', '0004_which_process_holds_the_lease', datetime('now')),
('roster', '0005_no_answer_since', datetime('now')),
('roster', '0006_source_of_a_call', datetime('now')),
('roster', '0007_rollups', datetime('now')),
('roster', '0008_desired_state', datetime('now')),
('roster', '0009_remote_servers', datetime('now')),
('roster', '0010_presets', datetime('now')),
('roster', '0011_token_words', datetime('now')),
('roster', '0012_calls', datetime('now')),
('roster', '0013_tokens', datetime('now')),
('roster', '0014_agents', datetime('now')),
('roster', '0015_help_texts', datetime('now')),
('roster', '0016_nodes', datetime('now')),
('roster', '0017_owners', datetime('now')),
('roster', '0018_several_nodes', datetime('now')),
('roster', '0019_key_fingerprint', datetime('now')),
('roster', '0020_node_url', datetime('now')),
('roster', '0021_client_sessions', datetime('now')),
('roster', '0022_member_extras', datetime('now')),
('roster', '0023_token_buckets', datetime('now')),
('roster', '0024_agents_of_nodes', datetime('now')),
('roster', '0025_required_migration', datetime('now')),
('roster', '0026_token_shares', datetime('now')),
('roster', '0027_roles', datetime('now')),
('roster', '0028_invitations', datetime('now')),
('roster', '0029_secrets', datetime('now')),
('roster', '0030_audit_log', datetime('now')),
('roster', '0031_sandbox_gaps', datetime('now')),
('roster', '0032_contracts', datetime('now')),
('roster', '0033_member_proposals', datetime('now')),
('roster', '0034_tool_sets', datetime('now')),
('roster', '0035_trash', datetime('now')),
('roster', '0036_edits', datetime('now')),
('roster', '0037_package_locks', datetime('now')),
('roster', '0038_version_look_ups', datetime('now')),
('roster', '0039_bundles', datetime('now')),
('roster', '0040_pinned_tools', datetime('now')),
('roster', '0041_manifest_error_key', datetime('now')),
('roster', '0042_disabled_extras', datetime('now')),
('roster', '0043_token_search_mode', datetime('now')),
('roster', '0044_search_text', datetime('now')),
('roster', '0045_saved_filters', datetime('now')),
('roster', '0046_repeated_failures', datetime('now')),
('roster', '0047_grants', datetime('now')),
('roster', '0048_identities', datetime('now')),
('roster', '0049_member_sign_ins', datetime('now')),
('roster', '0050_outside_issuer', datetime('now')),
('roster', '0051_user_sign_ins', datetime('now')),
('roster', '0052_id_tokens_for_members', datetime('now')),
('roster', '0053_grant_days', datetime('now')),
('sessions', '0001_initial', datetime('now'));
